"""Where a program's weights come from: files beside the model, bytes in memory, or random numbers
in place of files that do not exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr
from xdsl.ir import Attribute

from elk_ir.errors import ModelError
from elk_ir.frontend.weights import (
    WeightPart,
    WeightRef,
    apply_recipe,
    load_part,
    random_weight,
)


class WeightSource:
    """Loads weights, memory-mapped where nothing is to be done to them.

    base_dir: the model's folder, None for a model that was compiled from memory.
    buffers: files in memory, by the name under which weights refer to them.
    random_seed: fills weights whose file does not exist; None: that is an error.

    A tensor made up at random is kept, so that every level of a model computes with the same one
    however far its recipe has grown.
    """

    def __init__(
        self,
        base_dir: Path | None,
        *,
        buffers: Mapping[str, bytes] | None = None,
        random_seed: int | None = None,
    ) -> None:
        self.base_dir, self.buffers, self.random_seed = base_dir, buffers or {}, random_seed
        self._random: dict[WeightPart, np.ndarray] = {}

    def with_seed(self, seed: int | None) -> WeightSource:
        """The same source with another seed for what is missing."""
        return WeightSource(self.base_dir, buffers=self.buffers, random_seed=seed)

    def load(self, value: Attribute | None) -> np.ndarray:
        """The tensor of a weight's value: `#te.weight`, or elements in the IR itself.

        Raises ModelError when its file is missing, too short or not the one that was compiled.
        """
        from elk_ir.dialects.element_types import array_from_dense
        from elk_ir.dialects.weight import WeightAttr

        if isinstance(value, WeightAttr):
            return self.load_ref(value.to_ref())
        assert isinstance(value, DenseIntOrFPElementsAttr)
        return array_from_dense(value)

    def load_ref(self, ref: WeightRef) -> np.ndarray:
        """The tensor that a reference stands for. Raises ModelError as `load` does."""
        return apply_recipe([self._part(p, ref) for p in ref.parts], ref.recipe)

    def _part(self, part: WeightPart, ref: WeightRef) -> np.ndarray:
        if self.random_seed is not None and self._missing(part):
            if part not in self._random:
                # The recipe says which axis is summed over, the steps after it are applied above.
                swapped = tuple(s for s in ref.recipe if s.startswith("transpose"))
                order = tuple(reversed(range(len(part.shape))))
                undo = f"transpose {' '.join(map(str, order))}"
                steps = (undo, undo) if swapped else ()
                self._random[part] = random_weight(WeightRef((part,), steps), self.random_seed)
            return self._random[part]
        if self.base_dir is None and part.file not in self.buffers:
            raise ModelError(
                f"the weights of {part.name!r} are missing: the model was compiled from memory",
                hint="give the folder that holds them (weights_dir=), or use --random-weights SEED",
            )
        return load_part(part, self.base_dir or Path(), buffers=self.buffers)

    def _missing(self, part: WeightPart) -> bool:
        if not part.file:
            return True
        if part.file in self.buffers:
            return False
        return self.base_dir is None or not (self.base_dir / part.file).is_file()

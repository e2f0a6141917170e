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
    stacked_rows,
)

KEPT_BYTES = 16 << 20
"""Tensors up to this size are kept once made up or loaded; larger ones are made or mapped anew each
time they are read, so that a model need not fit into memory."""


class Rows:
    """A stack of weights, (rows, …), of which a row is loaded when it is asked for: `stack[row]`.

    Stands in for the array where only whole rows are read. Loading raises ModelError as
    `WeightSource.load` does.
    """

    def __init__(self, source: WeightSource, rows: list[WeightRef]) -> None:
        self._source, self._rows = source, rows
        self._kept: dict[int, np.ndarray] = {}
        self.shape = (len(rows), *rows[0].shape)

    def __getitem__(self, row: int) -> np.ndarray:
        if row in self._kept:
            return self._kept[row]
        array = self._source.load_ref(self._rows[row])
        if array.nbytes <= KEPT_BYTES:
            self._kept[row] = array
        return array


class WeightSource:
    """Loads weights, memory-mapped where nothing is to be done to them.

    base_dir: the model's folder, None for a model that was compiled from memory.
    buffers: files in memory, by the name under which weights refer to them.
    random_seed: fills weights whose file does not exist; None: that is an error.

    How a tensor is made up at random depends on its recipe when it is first read, and stays so:
    every level of a model computes with the same one however far its recipe has grown.
    """

    def __init__(
        self,
        base_dir: Path | None,
        *,
        buffers: Mapping[str, bytes] | None = None,
        random_seed: int | None = None,
    ) -> None:
        self.base_dir, self.buffers, self.random_seed = base_dir, buffers or {}, random_seed
        self._swapped: dict[WeightPart, bool] = {}
        self._random: dict[WeightPart, np.ndarray] = {}
        self._maps: dict[str, np.ndarray] = {}
        self._views: dict[WeightPart, np.ndarray] = {}

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
        return apply_recipe([self.part(p, ref) for p in ref.parts], ref.recipe)

    def rows(self, value: Attribute | None, stack: int | None) -> Rows | np.ndarray:
        """A weight, (stack, …) or (1, …) without a stack, whose rows are loaded one by one where
        its recipe allows that. Raises ModelError as `load` does."""
        from elk_ir.dialects.weight import WeightAttr

        if isinstance(value, WeightAttr):
            ref = value.to_ref()
            rows = [ref] if stack is None else stacked_rows(ref, stack)
            if rows is not None:
                return Rows(self, rows)
        array = self.load(value)
        return array[None] if stack is None else array

    def part(self, part: WeightPart, ref: WeightRef) -> np.ndarray:
        """One stored tensor of a weight, before its recipe. Raises ModelError as `load` does."""
        if part in self._views:
            return self._views[part]
        if self.random_seed is not None and self._missing(part):
            return self._made_up(part, ref, self.random_seed)
        if self.base_dir is None and part.file not in self.buffers:
            raise ModelError(
                f"the weights of {part.name!r} are missing: the model was compiled from memory",
                hint="give the folder that holds them (weights_dir=), or use --random-weights SEED",
            )
        base = self.base_dir or Path()
        array = load_part(part, base, buffers=self.buffers, maps=self._maps)
        if not array.flags.owndata:  # what is unpacked is not free to keep
            self._views[part] = array
        return array

    def _made_up(self, part: WeightPart, ref: WeightRef, seed: int) -> np.ndarray:
        if part in self._random:
            return self._random[part]
        # The recipe says which axis is summed over, the steps after it are applied by the caller.
        turned = any(s.startswith("transpose") for s in ref.recipe)
        swapped = self._swapped.setdefault(part, turned)
        order = tuple(reversed(range(len(part.shape))))
        undo = f"transpose {' '.join(map(str, order))}"
        array = random_weight(WeightRef((part,), (undo, undo) if swapped else ()), seed)
        if array.nbytes <= KEPT_BYTES:
            self._random[part] = array
        return array

    def _missing(self, part: WeightPart) -> bool:
        if not part.file:
            return True
        if part.file in self.buffers:
            return False
        return self.base_dir is None or not (self.base_dir / part.file).is_file()

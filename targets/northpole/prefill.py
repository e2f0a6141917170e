"""Prompts through a graph of their own on the cards of a decoding program.

A prompt graph takes many tokens of each user at once and leaves caches behind; the decoding graph
goes on from them. Both run on the same cards: products of both multiply with one copy of the
weights, and a layer's caches never leave the cards of its stage. That both hold is checked, number
by number, when the two are put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.decode import find_roles
from elk_ir.errors import ElkError, ModelError, UsageError
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.targets.northpole.cores import Spread
from elk_ir.targets.northpole.runtime import Appliance
from elk_ir.targets.northpole.stage_runner import StageRunner

if TYPE_CHECKING:
    from elk_ir.program import Program


@dataclass(frozen=True)
class PrefillCounters:
    """What prompts took: passes of the prompt graph, bytes over PCIe for them, bytes of caches that
    were handed over on the cards, bytes of weights that both graphs use, and those that the fullest
    core holds for the prompt graph alone (constants that it keeps elsewhere)."""

    passes: int
    pcie_bytes: int
    handed_over_bytes: int
    shared_weight_bytes: int
    extra_core_bytes: int


class Prefill:
    """A prompt program beside a decoding one on the same cards.

    Raises ElkError when a layer is not on the same cards in both, when their products multiply with
    different weights or hold them on different cores, or when what the prompt graph needs besides
    does not fit.
    """

    def __init__(self, program: Program, prompts: Appliance, decoder: Appliance, room: int) -> None:
        """`prompts` and `decoder` are the two programs with their weights placed; `room` bytes are
        left on the fullest core of the decoder."""
        self.program, self.prompts, self.decoder = program, prompts, decoder
        if prompts.batch != decoder.batch:
            raise ElkError(
                f"the prompt graph takes {prompts.batch} users a pass, decoding {decoder.batch}"
            )
        specs = {s.name: s for s in program.signature.inputs}
        self._specs = specs
        self.roles = find_roles(program, (), set())
        token = specs[self.roles.token]
        known = (self.roles.token, *self.roles.positions)
        unknown = [name for name in specs if name not in known]
        if unknown:
            raise ModelError(
                f"it is not known what input {unknown[0]!r} of the prompt graph is",
                hint="a prompt graph takes token ids and their positions",
            )
        self.tokens = token.shape[-1] if len(token.shape) > 1 else 1
        """Prompt tokens of a pass."""
        self._homes = self._pair()
        self._shared = self._handed = 0
        self._extra = max(map(self._share, prompts.stages), default=0)
        if self._extra > room:
            raise ElkError(
                f"the prompt graph keeps {self._extra:,} bytes more on a core, {room:,} are left"
                f" ({self._extra - room:,} too many)",
                hint="a shorter prompt graph, or fewer users",
            )

    # ------------------------------------------------------------------ putting two together

    def _pair(self) -> dict[str, tuple[StageRunner, StageRunner, int]]:
        """For each cache input of the decoder: the stage that makes it, the one that keeps it, and
        the axis of its entries."""
        made = {
            label: stage
            for stage in self.prompts.stages
            for _, _, label, _ in stage.labels()
            if label is not None
        }
        found: dict[str, tuple[StageRunner, StageRunner, int]] = {}
        self._label: dict[str, str] = {}
        for stage in self.decoder.stages:
            for taken, axis, label, name in stage.labels():
                if label is None or taken is None or label not in made:
                    raise ElkError(
                        f"the prompt graph does not make {label or name!r}, which the decoder keeps"
                    )
                source = made[label]
                a, b = source.cards, stage.cards
                if a != b:
                    raise ElkError(
                        f"{label!r} is made on card {_list(a)} and kept on card {_list(b)}: prompts"
                        " and decoding must have a layer on the same cards",
                        hint="compile both with the same --cards",
                    )
                found[taken] = (source, stage, axis)
                self._label[taken] = label
        if not found:
            raise ModelError("the decoder keeps no cache for prompts to fill")
        return found

    def _share(self, stage: StageRunner) -> int:
        """Let a prompt stage multiply with the decoder's copy of the weights; bytes on the fullest
        core of what is not shared."""
        there = [s for s in self.decoder.stages if s.cards == stage.cards]
        if not there:
            raise ElkError(
                f"{stage.name} of the prompt graph is on card {_list(stage.cards)}, no stage of the"
                " decoder is on the same cards",
                hint="compile both with the same --cards",
            )
        extra = 0
        for key, spread in stage.weights.items():
            same = next(
                (s for d in there for s in d.weights.values() if _same(s, spread)),
                None,
            )
            if same is not None:
                self._shared += same.data.nbytes
                # Layout and place stay its own objects: moves are looked up by identity.
                stage.weights[key] = Spread(same.data, spread.layout, spread.place)
            elif key in stage.products:
                raise ElkError(
                    f"a product of the prompt graph multiplies with {key[0]!r}"
                    f" ({spread.data.nbytes:,} bytes on card {_list(stage.cards)}), and the decoder"
                    " holds no such numbers on those cores",
                    hint="the two graphs must be of one model, quantised alike",
                )
            else:
                extra += spread.data.nbytes // spread.data.shape[0]
        return extra

    # ------------------------------------------------------------------ prompts

    def put(self, micro_batch: int, tokens: np.ndarray) -> None:
        """Start a pass with the first tokens (users, up to `tokens`) of a micro-batch. What is
        missing is padded behind: later tokens do not change what earlier ones leave."""
        users, count = tokens.shape
        if not 1 <= count <= self.tokens:
            raise UsageError(f"{count} prompt tokens, a pass takes 1 to {self.tokens}")
        padded = np.concatenate([tokens, np.zeros((users, self.tokens - count), tokens.dtype)], 1)
        given = {self.roles.token: _shaped(padded, self._specs[self.roles.token])}
        for name in self.roles.positions:
            spec = self._specs[name]
            given[name] = np.broadcast_to(np.arange(self.tokens), spec.shape).astype(spec.dtype)
        self.prompts.put(micro_batch, given)

    def hand_over(self, micro_batch: int, count: int) -> np.ndarray:
        """Wait for that pass, and let the decoder start from the `count` entries of each cache that
        are real; the logits (users, vocabulary) after the last of them."""
        outputs = self.prompts.get(micro_batch)
        caches: dict[int, dict[str, np.ndarray]] = {}
        for taken, (_, stage, axis) in self._homes.items():
            whole = outputs[self._label[taken]]
            entries = np.take(whole, np.arange(count), axis=axis)
            self._handed += entries.nbytes
            caches.setdefault(id(stage), {})[taken] = entries
        for stage in self.decoder.stages:
            stage.fill(micro_batch, caches.get(id(stage), {}))
        self.prompts.reset(micro_batch)
        logits = outputs[self.roles.logits]
        rows = logits.reshape(self.prompts.batch, -1, logits.shape[-1])
        if rows.shape[1] == self.tokens:
            return rows[:, count - 1]
        if rows.shape[1] == 1 and count == self.tokens:
            return rows[:, 0]
        raise ModelError(
            f"the prompt graph gives logits of {rows.shape[1]} of its {self.tokens} tokens, those"
            f" after token {count} are needed"
        )

    @property
    def counters(self) -> PrefillCounters:
        """What has happened so far."""
        done = self.prompts.counters
        return PrefillCounters(
            done.passes, done.pcie_bytes, self._handed, self._shared, self._extra
        )


def _same(a: Spread, b: Spread) -> bool:
    """Whether two weights are the same numbers on the same cores."""
    return (
        a.data.shape == b.data.shape
        and a.data.dtype == b.data.dtype
        and a.place == b.place
        and np.array_equal(a.layout.bounds, b.layout.bounds)
        and np.array_equal(a.data, b.data, equal_nan=a.data.dtype.kind == "f")
    )


def _shaped(tokens: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return tokens.astype(spec.dtype).reshape(spec.shape)


def _list(cards: tuple[int, ...]) -> str:
    return ", ".join(map(str, cards))

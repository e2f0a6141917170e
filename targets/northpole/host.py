"""What the host does for a model that generates: prompts in, greedy sampling, tokens fed back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from elk_ir.decode import Roles, find_caches, find_roles
from elk_ir.errors import ElkError, ModelError, UsageError
from elk_ir.numerics.tensors import TensorSpec
from elk_ir.targets.northpole.prefill import Prefill, PrefillCounters
from elk_ir.targets.northpole.runtime import Appliance, Counters

if TYPE_CHECKING:
    from elk_ir.program import Program


class Session:
    """One micro-batch of an appliance, driven as `elk_ir.decode` drives a virtual machine."""

    def __init__(self, appliance: Appliance) -> None:
        self.appliance = appliance
        self._given: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray] = {}

    def fill(self, inputs: Mapping[str, np.ndarray], *, again: bool = False) -> None:
        """The inputs of the next pass; `again`: the caches stay as the last one left them."""
        kept = {n for s in self.appliance.stages for n in s.state_inputs} if again else set()
        self._given = {name: value for name, value in inputs.items() if name not in kept}

    def execute(self) -> None:
        """One pass through all stages."""
        self.appliance.put(0, self._given)
        self._outputs = self.appliance.get(0)

    def outputs(self) -> dict[str, np.ndarray]:
        """Its outputs by name."""
        return self._outputs


@dataclass(frozen=True)
class Generation:
    """Greedy tokens (users, steps), the last logits (users, vocabulary), and what happened;
    `prefill`: to prompts that went through a graph of their own."""

    tokens: np.ndarray
    logits: np.ndarray
    counters: Counters
    prefill: PrefillCounters | None = None


class _Host:
    """Builds the inputs of passes from tokens and positions, by the roles of the graph's inputs."""

    def __init__(self, program: Program, appliance: Appliance) -> None:
        states = {n for s in appliance.stages for n in s.state_inputs}
        specs = {s.name: s for s in program.signature.inputs if s.name not in states}
        self.capacity, self.entries = _capacity(program)
        masks = [
            (s.name, axis)
            for s in specs.values()
            for axis, extent in enumerate(s.shape)
            if extent == self.capacity and "mask" in s.name.lower()
        ]
        self.roles: Roles = find_roles(program, masks, states)
        if self.roles.caches:
            raise ModelError(
                f"the caches {', '.join(n for n, _ in self.roles.caches)} are inputs and outputs of"
                " this graph and not kept on the cards",
                hint="export the graph with caches that grow, or decode with an ipu program",
            )
        self.specs = specs
        unknown = [
            s for s in specs if s not in (self.roles.token, *self.roles.positions, *dict(masks))
        ]
        if unknown:
            raise ModelError(f"it is not known what input {unknown[0]!r} is while decoding")

    def inputs(self, tokens: np.ndarray, position: int) -> dict[str, np.ndarray]:
        """One token for each user, the `position`-th of its sequence."""
        given = {self.roles.token: _as(tokens, self.specs[self.roles.token])}
        for name in self.roles.positions:
            spec = self.specs[name]
            given[name] = np.full(spec.shape, position, dtype=spec.dtype)
        for name, axis in self.roles.masks:
            spec = self.specs[name]
            mask = np.zeros(spec.shape, dtype=spec.dtype)
            filled = [slice(None)] * mask.ndim
            filled[axis] = slice(self.capacity - position - 1, None)
            mask[tuple(filled)] = 1
            given[name] = mask
        return given


def _as(tokens: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return tokens.astype(spec.dtype).reshape(spec.shape)


def _capacity(program: Program) -> tuple[int, int]:
    """Entries that the caches hold, and those that a pass appends. Raises ModelError."""
    caches = find_caches(program)
    states = {s["name"]: s for s in program.report["states"]}
    if not caches:
        raise ModelError("this graph keeps no cache, so it generates nothing")
    state = states[caches[0].symbol]
    return state["capacity"], state["capacity"] - state["length"]


def generate(
    program: Program,
    appliance: Appliance,
    prompts: np.ndarray,
    steps: int,
    *,
    together: bool = True,
    prefill: Prefill | None = None,
) -> Generation:
    """`steps` greedy tokens after each of `prompts` (users, length), as
    `NorthpoleProgram.generate`."""
    prompts = np.asarray(prompts)
    if prompts.ndim != 2 or prompts.dtype.kind not in "iu" or prompts.size == 0 or steps < 1:
        raise UsageError("prompts are integers (users, length), and at least one step is made")
    host = _Host(program, appliance)
    if host.entries != 1:
        raise ModelError(f"this graph takes {host.entries} tokens a pass, decoding takes one")
    users, length = prompts.shape
    needed = length + steps - 1
    if needed > host.capacity:
        raise ElkError(
            f"{length} prompt tokens and {steps} generated ones need a cache of {needed} entries,"
            f" it holds {host.capacity} ({needed - host.capacity} too many)",
            hint="compile with a longer cache (--dim, --kv-capacity), or generate less",
        )
    batch = appliance.batch
    if users % batch or users // batch > appliance.micro_batches:
        raise ElkError(
            f"{users} users are not whole micro-batches of {batch}, or more than"
            f" {appliance.micro_batches} of them"
        )
    groups = prompts.reshape(-1, batch, length)
    made: list[list[np.ndarray]] = [[] for _ in groups]
    logits: list[np.ndarray] = [np.zeros(0)] * len(groups)
    at_once = 0 if prefill is None else min(length, prefill.tokens)
    # Together: every micro-batch has its next pass under way before the first is waited for.
    for chosen in [range(len(groups))] if together else [[m] for m in range(len(groups))]:
        if prefill is not None:
            for m in chosen:
                prefill.put(m, groups[m][:, :at_once])
            for m in chosen:
                logits[m] = prefill.hand_over(m, at_once)
        for position in range(at_once, length):
            for m in chosen:
                appliance.put(m, host.inputs(groups[m][:, position], position))
        for step in range(steps):
            for m in chosen:
                # Passes of a prompt before its last one only fill the cache.
                for _ in range(length - at_once if step == 0 else 1):
                    logits[m] = appliance.get(m)[host.roles.logits].reshape(batch, -1)
                token = logits[m].argmax(-1)
                made[m].append(token)
                if step + 1 < steps:
                    appliance.put(m, host.inputs(token, length + step))
    tokens = np.concatenate([np.stack(each, axis=1) for each in made])
    happened = None if prefill is None else prefill.counters
    return Generation(tokens, np.concatenate(logits), appliance.counters, happened)

"""`plan_bound` with re-layouts: what a consumer fetches depends on its producer's plan as well.

A core holds at most the producer's largest piece, so of a slice that its tile reads it has to fetch
the rest: r = max(0, slice - piece) bytes into one port, in a phase with its barriers. Such an
exchange joins those of the operator in both families (`elk_ir.sim.bounds`): with weights w of
[preloads, execute, ingress] it costs (w1 + w2) r / B_in + w1 barrier, in the second family
a r / B_in + (1 - g) barrier. One edge an operator is counted, so that operators form a forest, and
the least sum over all choices of plans is found from the leaves up: exact for the edges counted,
a lower bound with those left out. Pieces are rounded up to a few sizes, which lowers it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elk_ir.sim.bounds import Choices

SIZES = 16
"""Sizes of pieces that are told apart."""
_STEPS = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True)
class Fetch:
    """A resident operand that another operator of the list makes.

    slice_s: per plan of the reader, seconds of its ingress port for all that its tile reads.
    byte_s: per plan of the reader, seconds a byte. pieces_bytes: per plan of the producer, the most
    that one core holds of it.
    """

    producer: int
    slice_s: np.ndarray
    byte_s: np.ndarray
    pieces_bytes: np.ndarray


@dataclass(frozen=True)
class _Weights:
    """Rows of weights of one family: of what operators cost, and of what re-layouts do."""

    nodes: list[np.ndarray]
    """Per operator, float64 (weights, plans)."""
    ingress: np.ndarray
    barrier: np.ndarray


def chain_bound(
    operators: Sequence[Choices], fetches: Mapping[int, Fetch], barrier_s: float
) -> float:
    """The best bound over a grid of weights, in seconds, on any schedule of `operators`, whichever
    plan each takes; fetches by reader, each of which comes after its producer in the list. For
    chips that compute or exchange, not both at once. barrier_s: of an exchange phase."""
    return max(
        float(_least(family, fetches, barrier_s).max())
        for family in (_first(operators), _second(operators))
    )


def _first(operators: Sequence[Choices]) -> _Weights:
    weights = np.asarray([(x, y, 1.0 - x - y) for x in _STEPS for y in _STEPS if x + y < 1 + 1e-9])
    weights = weights.clip(min=0.0)
    nodes = []
    for c in operators:
        parts = (c.preload_s, c.compute_s + c.exchange_s, c.landing_s + c.exchange_s)
        nodes.append(c.times * (weights @ np.stack(np.broadcast_arrays(*parts))))
    return _Weights(nodes, weights[:, 1] + weights[:, 2], weights[:, 1])


def _second(operators: Sequence[Choices]) -> _Weights:
    g, a = (x.reshape(-1, 1) for x in np.meshgrid(_STEPS, _STEPS))
    low = np.minimum(g, 1.0 - a)
    nodes = []
    for c in operators:
        if c.single:
            held = np.minimum(g * c.preload_s, (1.0 - a) * c.preload_s + a * c.landing_s)
        else:
            held = low * c.preload_s + (g - low) * c.landing_s
        nodes.append(c.times * ((1.0 - g) * c.compute_s + a * c.exchange_s + held))
    return _Weights(nodes, a[:, 0], 1.0 - g[:, 0])


def _least(family: _Weights, fetches: Mapping[int, Fetch], barrier_s: float) -> np.ndarray:
    """The least sum over all choices, for each row of weights."""
    nodes = [node.copy() for node in family.nodes]
    total = np.zeros(len(family.ingress))
    for i in reversed(range(len(nodes))):
        fetch = fetches.get(i)
        if fetch is None:
            total += nodes[i].min(axis=1)
            continue
        sizes = _rounded(fetch.pieces_bytes)
        least: dict[float, np.ndarray] = {}
        for size in np.unique(sizes).tolist():
            rest = (fetch.slice_s - size * fetch.byte_s).clip(min=0.0)
            moved = family.ingress[:, None] * rest
            moved += family.barrier[:, None] * np.where(rest > 0.0, barrier_s, 0.0)
            least[size] = (nodes[i] + moved).min(axis=1)
        nodes[fetch.producer] += np.stack([least[s] for s in sizes.tolist()], axis=1)
    return total


def _rounded(pieces: np.ndarray) -> np.ndarray:
    """Each size rounded up to one of at most `SIZES`."""
    known = np.unique(pieces)
    if known.size > SIZES:
        known = np.unique(known[np.linspace(0, known.size - 1, SIZES).round().astype(int)])
    return known[np.searchsorted(known, pieces)].astype(float)

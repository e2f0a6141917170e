"""Loads of mesh links: dimension-order routing, and trees from the HBM controllers.

A link is named by the core it leaves and a direction: index core · 4 + direction, with cores
numbered row by row and directions east, west, south, north. Traffic runs along the row of its
source, then along the column of its destination; a torus takes the shorter way round, east or
south where both are equal. What goes to another chip is routed on the source's chip to the
position of the destination and crosses there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

EAST, WEST, SOUTH, NORTH = range(4)


@dataclass(frozen=True)
class Mesh:
    """`chips` meshes (or tori) of rows x cols cores."""

    chips: int
    rows: int
    cols: int
    torus: bool

    @property
    def cores(self) -> int:
        """Cores of one chip."""
        return self.rows * self.cols

    @property
    def links(self) -> int:
        """Directed links, those that do not exist at a mesh's edges included."""
        return 4 * self.chips * self.cores

    def position(self, core: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(chip, row, column) of cores of the machine."""
        chip, row, col = _positions(self)
        return chip[core], row[core], col[core]


@lru_cache(maxsize=16)
def _positions(mesh: Mesh) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(chip, row, column) of every core."""
    chip, local = np.divmod(np.arange(mesh.chips * mesh.cores), mesh.cores)
    return chip, local // mesh.cols, local % mesh.cols


def offset(start: np.ndarray, end: np.ndarray, size: int, torus: bool) -> np.ndarray:
    """Signed hops from start to end along a dimension of `size` cores; on a torus the shorter way,
    the positive one where both are equal."""
    delta = end - start
    if not torus:
        return delta
    forward = delta % size
    return np.where(2 * forward <= size, forward, forward - size)


def hops(mesh: Mesh, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Links on the way between cores (of one chip, or as described above)."""
    _, r0, c0 = mesh.position(source)
    _, r1, c1 = mesh.position(target)
    across = np.abs(offset(c0, c1, mesh.cols, mesh.torus))
    return across + np.abs(offset(r0, r1, mesh.rows, mesh.torus))


def pair_loads(
    mesh: Mesh, source: np.ndarray, target: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, int]:
    """Bytes on every link for unicast transfers, float64 (links,), and the longest way in hops."""
    chip, r0, c0 = mesh.position(source)
    _, r1, c1 = mesh.position(target)
    loads = np.zeros((mesh.chips * mesh.cores, 4))
    dx = offset(c0, c1, mesh.cols, mesh.torus)
    dy = offset(r0, r1, mesh.rows, mesh.torus)
    row = chip * mesh.rows + r0
    lanes = (mesh.chips * mesh.rows, mesh.cols)
    loads[:, EAST] = _along(row, c0, dx, size, lanes).reshape(-1)
    loads[:, WEST] = _against(row, c0, dx, size, lanes).reshape(-1)
    column = chip * mesh.cols + c1
    lanes = (mesh.chips * mesh.cols, mesh.rows)
    for direction, walk in ((SOUTH, _along), (NORTH, _against)):
        table = walk(column, r0, dy, size, lanes).reshape(mesh.chips, mesh.cols, mesh.rows)
        loads[:, direction] = table.transpose(0, 2, 1).reshape(-1)
    longest = int((np.abs(dx) + np.abs(dy)).max(initial=0))
    return loads.reshape(-1), longest


def _along(
    lane: np.ndarray, start: np.ndarray, delta: np.ndarray, size: np.ndarray, lanes: tuple[int, int]
) -> np.ndarray:
    """Loads of the links in positive direction, (lanes, positions): a link is named by where it
    starts; walks that pass the end go on at the beginning."""
    chosen = delta > 0
    return _intervals(lane[chosen], start[chosen], delta[chosen], size[chosen], lanes)


def _against(
    lane: np.ndarray, start: np.ndarray, delta: np.ndarray, size: np.ndarray, lanes: tuple[int, int]
) -> np.ndarray:
    """The same in negative direction: mirrored."""
    chosen = delta < 0
    mirrored = lanes[1] - 1 - start[chosen]
    return _intervals(lane[chosen], mirrored, -delta[chosen], size[chosen], lanes)[:, ::-1]


def _intervals(
    lane: np.ndarray, start: np.ndarray, count: np.ndarray, size: np.ndarray, lanes: tuple[int, int]
) -> np.ndarray:
    number, length = lanes
    # Difference array over two rounds of the lane, then folded onto one.
    width = 2 * length + 1
    change = np.bincount(lane * width + start, size, minlength=number * width)
    change -= np.bincount(lane * width + start + count, size, minlength=number * width)
    load = np.cumsum(change.reshape(number, width), axis=1)[:, : 2 * length]
    folded = load[:, :length] + load[:, length:]
    # The walk of a round number leaves rounding noise where nothing runs.
    return np.where(folded > 1e-9 * (size.max(initial=0.0) or 1.0), folded, 0.0)


# ---------------------------------------------------------------------- controllers


@dataclass(frozen=True)
class Controllers:
    """The HBM controllers of every chip: (row, column) of each one's core, and the edge of the mesh
    (any label) on which it sits."""

    mesh: Mesh
    sites: tuple[tuple[int, int], ...]
    edges: tuple[str, ...]

    @cached_property
    def cores(self) -> np.ndarray:
        """The core of each controller within its chip: int64 (controllers,)."""
        return np.asarray([r * self.mesh.cols + c for r, c in self.sites], dtype=np.int64)

    @cached_property
    def homes(self) -> np.ndarray:
        """For each core of a chip the nearest controller of each edge (the first of equals):
        int64 (cores, edges)."""
        every = np.arange(self.mesh.cores)
        columns: list[np.ndarray] = []
        for edge in sorted(set(self.edges)):
            numbers = np.flatnonzero([e == edge for e in self.edges])
            way = np.stack(
                [hops(self.mesh, np.full_like(every, self.cores[k]), every) for k in numbers]
            )
            columns.append(numbers[way.argmin(axis=0)])
        return np.stack(columns, axis=1)


def edge_of(mesh: Mesh, placement: str, site: tuple[int, int]) -> str:
    """The edge on which a controller at `site` sits, by the chip file's placement; every corner is
    an edge of its own where they are at corners."""
    row, col = site
    if placement == "corners":
        return f"corner {row} {col}"
    sideways = (placement == "long-edges") != (mesh.cols >= mesh.rows)
    if placement == "all-edges" or not sideways:
        if row == 0:
            return "top"
        if row == mesh.rows - 1:
            return "bottom"
    return "left" if col == 0 else "right"


@dataclass(frozen=True)
class Feed:
    """What HBM controllers send (or take): bytes of each controller (chips x controllers,), of each
    link, and the longest way in hops."""

    controller_bytes: np.ndarray
    link_bytes: np.ndarray
    hops: int


def feed(
    controllers: Controllers,
    core: np.ndarray,
    block: np.ndarray,
    block_bytes: np.ndarray,
    *,
    multicast: bool,
    store: bool,
) -> Feed:
    """Blocks from HBM to the cores that hold them, or back (`store`).

    core, block: int64 (n,), every (core, block) held. The compiler lays tensors out in HBM: in each
    chip a block is cut into equal parts behind the controllers at home with its holders. With
    `multicast` a controller sends its part once, along the union of its paths.
    """
    mesh, count = controllers.mesh, len(controllers.sites)
    chip = core // mesh.cores
    group, of_holder = np.unique(chip * (block_bytes.size + 1) + block, return_inverse=True)
    of_holder = of_holder.reshape(-1)
    # Distinct (group, controller) pairs: who serves whom.
    homes = controllers.homes[core % mesh.cores]
    keys = np.unique((of_holder[:, None] * count + homes).reshape(-1))
    served, server = np.divmod(keys, count)
    parts = np.bincount(served, minlength=group.size)
    begin = np.cumsum(parts) - parts
    # Every holder with every controller that serves its block.
    times = parts[of_holder]
    holder = np.repeat(np.arange(core.size), times)
    ends = np.cumsum(times)
    at = np.arange(holder.size) + np.repeat(begin[of_holder] - (ends - times), times)
    number, share = server[at], block_bytes[block[holder]] / times[holder]
    site = chip[holder] * mesh.cores + controllers.cores[number]
    target = core[holder]
    if multicast and not store:
        group_bytes = block_bytes[group % (block_bytes.size + 1)] / np.maximum(parts, 1)
        where = group[served] // (block_bytes.size + 1) * count + server
        sent = np.bincount(where, group_bytes[served], minlength=mesh.chips * count)
        longest = int(hops(mesh, site, target).max(initial=0))
        return Feed(sent, _tree_loads(mesh, at, site, target, share), longest)
    where = chip[holder] * count + number
    sent = np.bincount(where, share, minlength=mesh.chips * count)
    ends_of = (target, site) if store else (site, target)
    return Feed(sent, *pair_loads(mesh, *ends_of, share))


def _tree_loads(
    mesh: Mesh, tree: np.ndarray, site: np.ndarray, target: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Bytes on every link when each tree (a number for every path) carries its bytes once along
    the union of its paths: along the row of its site as far as its farthest target in either
    direction, then along the column of each target likewise."""
    chip, r0, c0 = mesh.position(site)
    _, r1, c1 = mesh.position(target)
    loads = np.zeros((mesh.chips * mesh.cores, 4))
    dx = offset(c0, c1, mesh.cols, mesh.torus)
    dy = offset(r0, r1, mesh.rows, mesh.torus)
    first, low, high = _reach(tree, dx)
    row, lanes = (chip * mesh.rows + r0)[first], (mesh.chips * mesh.rows, mesh.cols)
    for direction, walk, reach in (
        (EAST, _along, np.maximum(high, 0)),
        (WEST, _against, np.minimum(low, 0)),
    ):
        loads[:, direction] = walk(row, c0[first], reach, size[first], lanes).reshape(-1)
    first, low, high = _reach(tree * mesh.cols + c1, dy)
    column, lanes = (chip * mesh.cols + c1)[first], (mesh.chips * mesh.cols, mesh.rows)
    for direction, walk, reach in (
        (SOUTH, _along, np.maximum(high, 0)),
        (NORTH, _against, np.minimum(low, 0)),
    ):
        table = walk(column, r0[first], reach, size[first], lanes)
        table = table.reshape(mesh.chips, mesh.cols, mesh.rows).transpose(0, 2, 1)
        loads[:, direction] = table.reshape(-1)
    return loads.reshape(-1)


def _reach(lane: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct lane: one of its entries, its least and its largest delta."""
    order = np.lexsort((delta, lane))
    ordered = lane[order]
    new = np.ones(lane.size, dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(new)
    last = np.append(first[1:], lane.size) - 1 if lane.size else first
    return order[first], delta[order[first]], delta[order[last]]

"""Loads of mesh links: dimension-order routing, and trees from the HBM controllers.

A link is named by the core it leaves and a direction: index core · 4 + direction, with cores
numbered row by row and directions east, west, south, north. Traffic runs along the row of its
source, then along the column of its destination; a torus takes the shorter way round, east or
south where both are equal. What goes to another chip is routed on the source's chip to the
position of the destination and crosses there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        chip, local = np.divmod(core, self.cores)
        return chip, local // self.cols, local % self.cols


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


def pair_loads(mesh: Mesh, source: np.ndarray, target: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Bytes on every link for unicast transfers: float64 (links,)."""
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
    return loads.reshape(-1)


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


def spread_loads(
    mesh: Mesh, controllers: Sequence[tuple[int, int]], held: np.ndarray
) -> np.ndarray:
    """Links of unicast from the controllers: each sends an equal part of every core's bytes.

    held: float64 (chips x cores,), bytes into each core.
    """
    if mesh.torus:
        source, target, size = _controller_pairs(mesh, controllers, held)
        return pair_loads(mesh, source, target, size)
    table = held.reshape(mesh.chips, mesh.rows, mesh.cols)
    down = np.cumsum(table[:, ::-1], axis=1)[:, ::-1]
    up = np.cumsum(table, axis=1)
    across = table.sum(axis=1)
    right = np.cumsum(across[:, ::-1], axis=1)[:, ::-1]
    left = np.cumsum(across, axis=1)
    return _tree(
        mesh, controllers, _after(down, 1), _before(up, 1), _after(right, 1), _before(left, 1)
    )


def multicast_loads(
    mesh: Mesh,
    controllers: Sequence[tuple[int, int]],
    core: np.ndarray,
    block: np.ndarray,
    block_bytes: np.ndarray,
) -> np.ndarray:
    """Links of multicast: each controller sends an equal part of every block along the union of
    its paths to the cores that hold it. core, block: int64 (n,), every (core, block) held."""
    chip, row, col = mesh.position(core)
    if mesh.torus:
        return _torus_trees(mesh, controllers, chip, row, col, block, block_bytes)
    # How far each block reaches, in every column and across columns, of each chip.
    lane, lane_size, bottom, top = _reach(
        (block * mesh.chips + chip) * mesh.cols + col, row, block_bytes, block
    )
    where = lane % (mesh.chips * mesh.cols)
    shape = (mesh.chips, mesh.cols, mesh.rows)
    # load on the link after position i = bytes of blocks that reach beyond i.
    size = mesh.chips * mesh.cols * mesh.rows
    ends = np.bincount(where * mesh.rows + top, lane_size, minlength=size).reshape(shape)
    starts = np.bincount(where * mesh.rows + bottom, lane_size, minlength=size).reshape(shape)
    down = _after(np.cumsum(ends[..., ::-1], axis=-1)[..., ::-1], 2).transpose(0, 2, 1)
    up = _before(np.cumsum(starts, axis=-1), 2).transpose(0, 2, 1)
    lane, lane_size, bottom, top = _reach(block * mesh.chips + chip, col, block_bytes, block)
    where = lane % mesh.chips
    size = mesh.chips * mesh.cols
    ends = np.bincount(where * mesh.cols + top, lane_size, minlength=size)
    starts = np.bincount(where * mesh.cols + bottom, lane_size, minlength=size)
    shape = (mesh.chips, mesh.cols)
    right = _after(np.cumsum(ends.reshape(shape)[:, ::-1], axis=1)[:, ::-1], 1)
    left = _before(np.cumsum(starts.reshape(shape), axis=1), 1)
    return _tree(mesh, controllers, down, up, right, left)


def _reach(
    lane: np.ndarray, position: np.ndarray, block_bytes: np.ndarray, block: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct lane: its number, its block's bytes, its least and largest position."""
    order = np.lexsort((position, lane))
    lane, position, block = lane[order], position[order], block[order]
    first = np.flatnonzero(np.concatenate([[True], lane[1:] != lane[:-1]])) if lane.size else lane
    last = np.concatenate([first[1:], [lane.size]]) - 1 if lane.size else lane
    sizes = block_bytes[block[first]].astype(np.float64)
    return lane[first], sizes, position[first], position[last]


def _after(table: np.ndarray, axis: int) -> np.ndarray:
    """Entry i of the result is entry i + 1: what lies beyond the link that leaves i forwards."""
    moved = np.roll(table, -1, axis=axis)
    moved[(slice(None),) * axis + (-1,)] = 0.0
    return moved


def _before(table: np.ndarray, axis: int) -> np.ndarray:
    """Entry i of the result is entry i - 1."""
    moved = np.roll(table, 1, axis=axis)
    moved[(slice(None),) * axis + (0,)] = 0.0
    return moved


def _tree(
    mesh: Mesh,
    controllers: Sequence[tuple[int, int]],
    down: np.ndarray,
    up: np.ndarray,
    right: np.ndarray,
    left: np.ndarray,
) -> np.ndarray:
    """Links of trees from all controllers. down, up (chips, rows, cols): bytes wanted beyond each
    vertical link; right, left (chips, cols): beyond each column, over all rows."""
    at = np.zeros((mesh.rows, mesh.cols))
    for row, col in controllers:
        at[row, col] += 1.0 / len(controllers)
    above = np.cumsum(at.sum(axis=1))[:, None]  # share of the controllers at or above a row
    below = np.cumsum(at.sum(axis=1)[::-1])[::-1][:, None]
    west_of = np.cumsum(at, axis=1)  # share in this row, at or left of a column
    east_of = np.cumsum(at[:, ::-1], axis=1)[:, ::-1]
    loads = np.zeros((mesh.chips, mesh.rows, mesh.cols, 4))
    loads[..., SOUTH] = down * above
    loads[..., NORTH] = up * below
    loads[..., EAST] = right[:, None, :] * west_of
    loads[..., WEST] = left[:, None, :] * east_of
    return loads.reshape(-1)


def _controller_pairs(
    mesh: Mesh, controllers: Sequence[tuple[int, int]], held: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(controller's core, core, bytes) of every controller and core that has bytes."""
    core = np.flatnonzero(held)
    base = core // mesh.cores * mesh.cores
    at = np.asarray([r * mesh.cols + c for r, c in controllers], dtype=np.int64)
    site = (base[:, None] + at).reshape(-1)
    share = np.repeat(held[core] / len(controllers), len(controllers))
    return site, np.repeat(core, len(controllers)), share


def collect_loads(
    mesh: Mesh, controllers: Sequence[tuple[int, int]], sent: np.ndarray
) -> np.ndarray:
    """Links of stores: every core sends an equal part of its bytes to each controller."""
    site, core, size = _controller_pairs(mesh, controllers, sent)
    return pair_loads(mesh, core, site, size)


def controller_hops(mesh: Mesh, controllers: Sequence[tuple[int, int]], held: np.ndarray) -> int:
    """The longest way between a controller and a core with bytes."""
    local = np.unique(np.flatnonzero(held) % mesh.cores)
    if local.size == 0:
        return 0
    sites = np.asarray([r * mesh.cols + c for r, c in controllers], dtype=np.int64)
    return int(hops(mesh, np.repeat(sites, local.size), np.tile(local, sites.size)).max())


def _torus_trees(
    mesh: Mesh,
    controllers: Sequence[tuple[int, int]],
    chip: np.ndarray,
    row: np.ndarray,
    col: np.ndarray,
    block: np.ndarray,
    block_bytes: np.ndarray,
) -> np.ndarray:
    """Unions of paths on a torus, controller by controller: each reaches as far as its farthest
    receiver in either direction, along its row and then along every column."""
    loads = np.zeros((mesh.chips * mesh.cores, 4))
    for r0, c0 in controllers:
        dx = offset(np.asarray(c0), col, mesh.cols, True)
        dy = offset(np.asarray(r0), row, mesh.rows, True)
        row_lane = block * mesh.chips + chip
        column_lane = (block * mesh.chips + chip) * mesh.cols + col
        for lane, delta, forward, backward in (
            (row_lane, dx, EAST, WEST),
            (column_lane, dy, SOUTH, NORTH),
        ):
            number, size, low, high = _reach(lane, delta, block_bytes, block)
            size = size / len(controllers)
            vertical = forward == SOUTH
            if vertical:
                where = number % (mesh.chips * mesh.cols)
                start, lanes = np.full(where.size, r0), (mesh.chips * mesh.cols, mesh.rows)
            else:
                where = number % mesh.chips
                start, lanes = np.full(where.size, c0), (mesh.chips, mesh.cols)
            for direction, table in (
                (forward, _along(where, start, np.maximum(high, 0), size, lanes)),
                (backward, _against(where, start, np.minimum(low, 0), size, lanes)),
            ):
                if vertical:
                    table = table.reshape(mesh.chips, mesh.cols, mesh.rows).transpose(0, 2, 1)
                    loads[:, direction] += table.reshape(-1)
                else:
                    view = loads[:, direction].reshape(mesh.chips, mesh.rows, mesh.cols)
                    view[:, r0, :] += table
                    loads[:, direction] = view.reshape(-1)
    return loads.reshape(-1)

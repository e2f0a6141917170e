"""Where HBM controllers sit on a mesh, and what fields of a chip may not contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from elk_ir.chips.sections import Hbm, Network

if TYPE_CHECKING:
    from elk_ir.chips.chip import Chip


def controller_positions(network: Network, hbm: Hbm) -> tuple[tuple[int, int], ...]:
    """(row, column) of the core to which each HBM controller of a chip attaches, in order.

    Empty when they attach to the switch of an all-to-all network. Controllers are dealt to the
    edges of their placement in turn and spread evenly along each.
    """
    if hbm.controller_placement == "switch":
        return ()
    edges = _edges(network, hbm.controller_placement)
    positions: list[tuple[int, int]] = []
    for edge, share in zip(edges, _shares(hbm.controllers_per_chip, len(edges)), strict=True):
        positions += [edge[(2 * i + 1) * len(edge) // (2 * share)] for i in range(share)]
    return tuple(positions)


def _shares(total: int, edges: int) -> list[int]:
    return [total // edges + (index < total % edges) for index in range(edges)]


def _edges(network: Network, placement: str) -> list[list[tuple[int, int]]]:
    """The rows of cores on which controllers of a placement may sit."""
    rows, cols = network.rows, network.cols
    top = [(0, col) for col in range(cols)]
    bottom = [(rows - 1, col) for col in range(cols)]
    left = [(row, 0) for row in range(rows)]
    right = [(row, cols - 1) for row in range(rows)]
    if placement == "corners":
        corners = [(0, 0), (0, cols - 1), (rows - 1, 0), (rows - 1, cols - 1)]
        edges = [[corner] for corner in corners]
    elif placement == "all-edges":
        # The corners belong to top and bottom.
        edges = [top, bottom, left[1:-1], right[1:-1]]
    elif (placement == "long-edges") == (cols >= rows):
        edges = [top, bottom]
    else:
        edges = [left, right]
    seen: set[tuple[int, int]] = set()
    unique: list[list[tuple[int, int]]] = []
    for edge in edges:
        left_over = [site for site in edge if site not in seen]
        seen.update(left_over)
        if left_over:
            unique.append(left_over)
    return unique


def contradictions(chip: Chip) -> Iterator[str]:
    """What is wrong between fields that are each in range."""
    net, hbm = chip.network, chip.hbm
    if chip.usable_sram_per_core_bytes <= 0:
        yield (
            f"reserved_per_core_bytes = {chip.reserved_per_core_bytes}: must be less than"
            f" sram_per_core_bytes = {chip.sram_per_core_bytes} bytes"
        )
    meshed = net.topology != "all-to-all"
    shape = net.rows * net.cols
    if shape != chip.cores_per_chip and (meshed or net.rows or net.cols):
        yield (
            f"network.rows × network.cols = {net.rows} × {net.cols} = {shape} cores: must be"
            f" cores_per_chip = {chip.cores_per_chip} cores"
        )
        shape = 0
    if meshed and not net.link_bytes_per_s:
        yield (
            f"network.link_bytes_per_s = 0: a {net.topology} network needs a link bandwidth in"
            " bytes/s"
        )
    if hbm is None:
        return
    if meshed == (hbm.controller_placement == "switch"):
        places = "an edge of the mesh" if meshed else "'switch'"
        yield (
            f"hbm.controller_placement = '{hbm.controller_placement}': must be {places} on a"
            f" {net.topology} network"
        )
    elif meshed and shape:
        # Controllers are dealt to the edges in turn, so the shortest edge may be full first.
        edges = _edges(net, hbm.controller_placement)
        total = hbm.controllers_per_chip
        shares = _shares(total, len(edges))
        if any(share > len(edge) for share, edge in zip(shares, edges, strict=True)):
            room = min(len(edge) for edge in edges) * len(edges)
            yield (
                f"hbm.controllers_per_chip = {total}: must be a whole number from 1 to {room}"
                f" controllers, dealt in turn to {len(edges)} edges or corners of a"
                f" {net.rows} × {net.cols} mesh"
            )
    if bool(hbm.refresh_interval_s) != bool(hbm.refresh_duration_s):
        yield "hbm.refresh_interval_s and hbm.refresh_duration_s: give both (in s) or neither"
    elif hbm.refresh_interval_s and hbm.refresh_duration_s >= hbm.refresh_interval_s:
        yield (
            f"hbm.refresh_duration_s = {hbm.refresh_duration_s:g}: must be less than"
            f" hbm.refresh_interval_s = {hbm.refresh_interval_s:g} s"
        )
    elif hbm.refresh_interval_s and not hbm.peak_bandwidth_bytes_per_s:
        yield "hbm.refresh_interval_s: needs hbm.peak_bandwidth_bytes_per_s (bytes/s) to act on"
    elif hbm.peak_bandwidth_bytes_per_s:
        ceiling = hbm.refresh_sustained_bytes_per_s
        if hbm.bandwidth_bytes_per_s > ceiling * (1 + 1e-9):
            yield (
                f"hbm.bandwidth_bytes_per_s = {hbm.bandwidth_bytes_per_s:g}: must be at most"
                f" {ceiling:g} bytes/s, the stated peak less refresh"
            )
    if chip.northpole is not None:
        yield 'hbm: a NorthPole card has no off-chip memory (write hbm = "none")'

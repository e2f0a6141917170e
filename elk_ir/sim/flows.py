"""Transfers as coflows on a machine's resources, and how two of them share.

A coflow is a vector over all resources: the seconds for which it would occupy each one alone. It
makes progress on all of them in step (compiled transfers are scheduled), so alone it takes the
largest entry, and at rate x (parts a second) it uses x · entry of each resource. Resources: ports
of cores (in, out), SRAM ports, mesh links, links between chips, HBM controllers, HBM pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elk_ir.chips.chip import Chip
from elk_ir.errors import ElkError
from elk_ir.sim import routing
from elk_ir.sim.timeline import Delivery, Traffic


@dataclass(frozen=True)
class Coflow:
    """One transfer on a machine. seconds: float64 (resources,); latency_s comes before the first
    byte; the byte counts are what the energy model charges (network_bytes once a link on a mesh).
    """

    seconds: np.ndarray
    latency_s: float
    hbm_bytes: float
    network_bytes: float
    chip_link_bytes: float
    port_bytes: np.ndarray
    """Bytes through each core's SRAM port, as remote traffic of a compute phase."""

    @cached_property
    def alone_s(self) -> float:
        """Duration without anybody else, latency excluded."""
        return float(self.seconds.max())

    @cached_property
    def bottleneck(self) -> int:
        """The resource that takes longest."""
        return int(self.seconds.argmax())


@dataclass(frozen=True)
class Resources:
    """The resources of a chip: names, and where each kind begins in a coflow's vector."""

    chip: Chip

    @cached_property
    def mesh(self) -> routing.Mesh | None:
        """The links of each chip; None on an all-to-all network."""
        net = self.chip.network
        if net.topology == "all-to-all":
            return None
        return routing.Mesh(self.chip.chips, net.rows, net.cols, net.topology == "torus2d")

    @cached_property
    def controllers(self) -> routing.Controllers | None:
        """Where HBM controllers sit on a mesh; None at a switch, and without HBM."""
        hbm = self.chip.hbm
        if self.mesh is None or hbm is None:
            return None
        mesh, sites = self.mesh, self.chip.controller_positions()
        edges = tuple(routing.edge_of(mesh, hbm.controller_placement, site) for site in sites)
        return routing.Controllers(mesh, sites, edges)

    @property
    def _controllers_per_chip(self) -> int:
        """Controllers that are told apart: those at a switch send equal parts of everything."""
        if self.controllers is not None:
            return len(self.controllers.sites)
        return 0 if self.chip.hbm is None else 1

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Kind of resource to its place in a vector."""
        chip = self.chip
        counts = {
            "port_in": chip.cores,
            "port_out": chip.cores,
            "sram": chip.cores,
            "link": self.mesh.links if self.mesh else 0,
            "chip_in": chip.chips,
            "chip_out": chip.chips,
            "controller": self._controllers_per_chip * chip.chips,
            "hbm": chip.hbm_pools,
        }
        table: dict[str, slice] = {}
        begin = 0
        for kind, count in counts.items():
            table[kind] = slice(begin, begin + count)
            begin += count
        return table

    @cached_property
    def size(self) -> int:
        """Resources in all."""
        return self.slices["hbm"].stop

    def kind(self, resource: int) -> str:
        """The kind of a resource: what bounded a transfer."""
        return next(k for k, s in self.slices.items() if s.start <= resource < s.stop)

    def mean_seconds(self, coflow: Coflow, what: str) -> float:
        """Mean of a coflow's seconds over the HBM pools (`hbm`) or over what carries the network
        (`network`: links, or ports in): times its rate, the part of that bandwidth in use."""
        found = self._means.get((id(coflow), what))
        if found is None or found[0] is not coflow:
            kind = what if what == "hbm" else "link" if self.mesh else "port_in"
            values = coflow.seconds[self.slices[kind]]
            count = values.size
            if kind == "link":
                count = self.chip.chips * self.chip.links_per_chip
            found = (coflow, float(values.sum()) / count if count else 0.0)
            self._means[id(coflow), what] = found
        return found[1]

    @cached_property
    def _means(self) -> dict[tuple[int, str], tuple[Coflow, float]]:
        return {}

    @cached_property
    def _nothing(self) -> np.ndarray:
        return np.zeros(self.chip.cores)

    def _vector(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        vector = np.zeros(self.size)
        for kind, values in parts.items():
            vector[self.slices[kind]] = values
        return vector

    # ------------------------------------------------------------------ exchanges

    def exchange(self, traffic: Traffic, span: int) -> Coflow:
        """An exchange of an operator on `span` cores. Each byte costs the chip's overhead."""
        chip, net = self.chip, self.chip.network
        factor = net.exchange_overhead_factor
        if span > chip.cores_per_chip:
            factor *= net.exchange_span_factor
        source, target = traffic.source.values, traffic.target.values
        size = traffic.size_bytes.values
        received, sent = traffic.ingress, traffic.egress
        through = received + sent
        parts = {
            "port_in": received * factor / net.port_in_bytes_per_s,
            "port_out": sent * factor / net.port_out_bytes_per_s,
            "sram": (through + 2.0 * traffic.local_bytes.values) / chip.local_sram_bytes_per_s,
        }
        network_bytes = float(traffic.total_bytes)
        latency = net.transfer_latency_cycles / chip.clock_hz if size.size else 0.0
        if self.mesh is not None:
            loads, longest = routing.pair_loads(
                self.mesh,
                source.astype(np.int64),
                target.astype(np.int64),
                size.astype(np.float64),
            )
            parts["link"] = loads * factor / net.link_bytes_per_s
            network_bytes = float(loads.sum())
            latency += longest * net.hop_latency_cycles / chip.clock_hz
        crossing = source // chip.cores_per_chip != target // chip.cores_per_chip
        crossed = size[crossing].astype(np.float64)
        if crossed.size:
            latency += net.inter_chip_latency_s
            if net.inter_chip_link_bytes_per_s:
                rate = net.inter_chip_link_bytes_per_s / factor
                for kind, core in (("chip_in", target), ("chip_out", source)):
                    at = core[crossing] // chip.cores_per_chip
                    parts[kind] = np.bincount(at, crossed, minlength=chip.chips) / rate
        return Coflow(
            self._vector(parts), latency, 0.0, network_bytes, float(crossed.sum()), through
        )

    # ------------------------------------------------------------------ HBM

    def preload(self, delivery: Delivery) -> Coflow:
        """A preload: HBM, controllers, links and the ports of the cores that receive."""
        return self._transfer(delivery, store=False)

    def store(self, delivery: Delivery) -> Coflow:
        """A store: each block is sent once, by the first core that holds it."""
        return self._transfer(delivery, store=True)

    def _transfer(self, delivery: Delivery, store: bool) -> Coflow:
        chip, net, hbm = self.chip, self.chip.network, self.chip.hbm
        if hbm is None:
            # Without HBM weights are in place before the program starts, and outputs stay there.
            return Coflow(np.zeros(self.size), 0.0, 0.0, 0.0, 0.0, self._nothing)
        sizes = delivery.block_bytes.values
        if store:
            moved = np.bincount(delivery.senders, sizes, minlength=chip.cores)
        else:
            moved = delivery.ingress
        per_chip = moved.reshape(chip.chips, -1).sum(axis=1)
        core, block = _held(delivery)
        needed = _unique_per_chip(chip, core, block, sizes)
        if hbm.pools == "one":
            pools = np.asarray([float(delivery.hbm_bytes)])
        else:
            pools = per_chip if store else np.minimum(needed, float(delivery.hbm_bytes))
        port = "port_out" if store else "port_in"
        port_rate = net.port_out_bytes_per_s if store else net.port_in_bytes_per_s
        parts = {
            port: moved / port_rate,
            "hbm": pools * (chip.hbm_pools / hbm.bandwidth_bytes_per_s),
        }
        if chip.landing_steals_sram:
            parts["sram"] = moved / chip.local_sram_bytes_per_s
        network_bytes = float(moved.sum())
        latency = hbm.latency_s + net.transfer_latency_cycles / chip.clock_hz
        egress = hbm.controller_egress_bytes_per_s
        if self.controllers is None:
            sent = needed if hbm.multicast and not store else per_chip
            parts["controller"] = sent / (egress * hbm.controllers_per_chip)
        else:
            if store:
                core, block = delivery.senders, np.arange(sizes.size)
            fed = routing.feed(
                self.controllers, core, block, sizes, multicast=hbm.multicast, store=store
            )
            parts["controller"] = fed.controller_bytes / egress
            parts["link"] = fed.link_bytes / net.link_bytes_per_s
            network_bytes = float(fed.link_bytes.sum())
            latency += fed.hops * net.hop_latency_cycles / chip.clock_hz
        return Coflow(
            self._vector(parts),
            latency,
            float(pools.sum()),
            network_bytes,
            0.0,
            moved if chip.landing_steals_sram else self._nothing,
        )


def _held(delivery: Delivery) -> tuple[np.ndarray, np.ndarray]:
    """Every (core, block) that is held."""
    held = delivery.holders.values
    present = held >= 0
    return (np.arange(held.size) // delivery.slots)[present], held[present]


def _unique_per_chip(
    chip: Chip, core: np.ndarray, block: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Bytes of the distinct blocks that each chip's cores hold: float64 (chips,)."""
    key = np.unique(core // chip.cores_per_chip * max(sizes.size, 1) + block)
    at, which = np.divmod(key, max(sizes.size, 1))
    return np.bincount(at, sizes[which], minlength=chip.chips).astype(np.float64)


# ---------------------------------------------------------------------- sharing

_TOLERANCE = 1e-12


def share(preload: np.ndarray, exchange: np.ndarray, policy: str) -> tuple[float, float]:
    """Rates (parts a second) of a preload and an exchange that run at once.

    `exchange-first`: the exchange as if alone, the preload what is left. `max-min`: neither can
    gain without taking from one that has no more: on a resource that both fill each has half,
    unless one is held back elsewhere and leaves it to the other. With two coflows the feasible
    rates are a convex polygon; walking its border from the exchange's best point, the preload's
    part of the binding resource only grows, and where it reaches one half is the fair point.
    """
    fast_p, fast_e = 1.0 / float(preload.max()), 1.0 / float(exchange.max())
    both = (preload > 0) & (exchange > 0)
    if not both.any() or float((preload * fast_p + exchange * fast_e)[both].max()) <= 1.0:
        return fast_p, fast_e
    if policy == "exchange-first":
        used = preload > 0
        left = float(((1.0 - exchange[used] * fast_e) / preload[used]).min())
        return (left if left > _TOLERANCE * fast_p else 0.0), fast_e
    p, e = _corners(preload, exchange)
    at = 0  # the edge on which we are; edges are ordered from the exchange's best point
    x = 0.0
    for at in range(p.size):
        end = fast_p
        if at + 1 < p.size:
            end = (e[at] - e[at + 1]) / (p[at + 1] * e[at] - p[at] * e[at + 1])
        fair = 0.5 / p[at] if p[at] > 0 else np.inf
        if fair <= end:
            x = max(x, fair)
            break
        x = end
    return float(x), float((1.0 - p[at] * x) / e[at])


def _corners(p: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The resources that bind somewhere on the border of {p x + e y <= 1}, in order of growing x:
    the upper convex hull of the points (p, e). Those without exchange (e = 0) come last."""
    order = np.lexsort((p, e))[::-1]
    p, e = p[order], e[order]
    reached = np.maximum.accumulate(p)
    fresh = np.concatenate([[True], p[1:] > reached[:-1]])
    hull: list[tuple[float, float]] = []
    for a, b in zip(p[fresh].tolist(), e[fresh].tolist(), strict=True):
        while len(hull) >= 2:
            (a0, b0), (a1, b1) = hull[-2], hull[-1]
            if (a1 - a0) * (b - b0) >= (a - a0) * (b1 - b0):
                hull.pop()
            else:
                break
        hull.append((a, b))
        if b == 0.0:
            break
    if len(hull) > 1 and hull[-1][1] == 0.0:
        hull.pop()
    table = np.asarray(hull)
    return table[:, 0], table[:, 1]


def max_min(
    loads: np.ndarray, capacity: np.ndarray, demand: np.ndarray | Sequence[float]
) -> np.ndarray:
    """Max-min fair rates of many independent flows, by progressive filling.

    loads: float64 (flows, resources), what one unit of each flow's rate uses of each resource.
    All rates grow together; a flow stops at its demand, or when a resource that it uses is full.
    Raises ElkError for a flow that neither has a demand nor uses anything.
    """
    rates = np.zeros(loads.shape[0])
    left = capacity.astype(np.float64).copy()
    limit = np.asarray(demand, dtype=np.float64)
    active = limit > 0
    while active.any():
        used = loads[active].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            room = np.where(used > 0, left / used, np.inf)
        step = min(float(room.min(initial=np.inf)), float((limit - rates)[active].min()))
        if not np.isfinite(step):
            raise ElkError("a flow without demand uses no resource")
        rates[active] += step
        left = np.maximum(left - step * used, 0.0)
        full = left <= _TOLERANCE * capacity
        active &= (rates < limit * (1.0 - _TOLERANCE)) & ~(loads[:, full] > 0).any(axis=1)
    return rates

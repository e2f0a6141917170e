"""A chip with the coflows of known patterns, shared by all simulations on it."""

from __future__ import annotations

from functools import lru_cache

from elk_ir.chips.chip import Chip
from elk_ir.sim.flows import Coflow, Resources, share
from elk_ir.sim.timeline import Exchange, Preload, Store

_CACHED = 1024
"""Coflows of each kind; one of 5,888 cores has 190 KB."""


class Machine:
    """A chip's resources with the coflows of known patterns, shared by all simulations on it."""

    def __init__(self, chip: Chip):
        self.resources = Resources(chip)
        self.exchanges: dict[tuple[bytes, int], Coflow] = {}
        self.deliveries: dict[object, Coflow] = {}
        self.rates: dict[tuple[int, int], tuple[Coflow, Coflow, tuple[float, float]]] = {}

    def coflow(self, event: Preload | Store | Exchange) -> Coflow:
        """The coflow of an event's transfer."""
        if isinstance(event, Exchange):
            return self._exchange(event)
        key = (event.delivery, isinstance(event, Store))
        found = self.deliveries.get(key)
        if found is None:
            if len(self.deliveries) >= _CACHED:
                self.deliveries.clear()
                self.rates.clear()
            of = self.resources.store if isinstance(event, Store) else self.resources.preload
            found = self.deliveries[key] = of(event.delivery)
        return found

    def _exchange(self, event: Exchange) -> Coflow:
        key = (event.traffic.digest, event.span)
        found = self.exchanges.get(key)
        if found is None:
            if len(self.exchanges) >= _CACHED:
                self.exchanges.clear()
                self.rates.clear()
            found = self.exchanges[key] = self.resources.exchange(event.traffic, event.span)
        return found

    def share(self, transfer: Coflow, exchange: Coflow) -> tuple[float, float]:
        """Rates of a transfer from or to HBM and an exchange that run at once."""
        net = self.resources.chip.network
        if net.preload_network == "separate":
            return 1.0 / transfer.alone_s, 1.0 / exchange.alone_s
        key = (id(transfer), id(exchange))
        found = self.rates.get(key)
        if found is None or found[0] is not transfer or found[1] is not exchange:
            rates = share(transfer.seconds, exchange.seconds, net.transfer_sharing)
            found = self.rates[key] = transfer, exchange, rates
        return found[2]


@lru_cache(maxsize=2)
def machine_of(chip: Chip) -> Machine:
    """The machine of a chip."""
    return Machine(chip)

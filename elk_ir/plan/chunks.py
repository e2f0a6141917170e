"""Into how many executes an operator is cut along a parallel dimension (docs/scheduling.md)."""

from __future__ import annotations

from elk_ir.plan.candidates import divisors

WHOLE = 0.5
"""An operator whose preloads take no more than this part of the SRAM stays whole."""

CHUNK = 1 / 3
"""What the preloads of one chunk may take of it: one executes while the next one lands, beside the
weights that follow."""


def ranges(extent: int, chunks: int) -> tuple[tuple[int, int], ...]:
    """(start, points) of at most `chunks` parts of a dimension, all but the last equally long."""
    size = -(-extent // chunks)
    return tuple((start, min(size, extent - start)) for start in range(0, extent, size))


def chunks_for(preload_bytes: int, extent: int, sram_bytes: int) -> int:
    """Chunks of an operator that preloads `preload_bytes` along a dimension of `extent` points, on
    a chip with `sram_bytes` on all cores together: the fewest that divide `extent` and are small
    enough, else as many as there are points; 1 where the whole leaves room for other preloads."""
    if preload_bytes <= WHOLE * sram_bytes:
        return 1
    return next((n for n in divisors(extent) if preload_bytes <= n * CHUNK * sram_bytes), extent)

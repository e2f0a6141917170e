"""What is quantised to how many bits: the scheme and the options of `te-quantize`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elk_ir.errors import ElkError

WEIGHT_BITS = (2, 4, 8)
ACTIVATION_BITS = (2, 4, 8, 16)
GRAINS = ("tensor", "token")

_SCHEME = re.compile(r"w(\d+)a(\d+)")


@dataclass(frozen=True)
class Scheme:
    """Bits of each kind of tensor. 16 activation bits: they stay floating-point numbers.

    output_bits: weights and activations of the output layer (its weights only where activations
    stay numbers; 16: it stays as it is). silu_bits: what an activation
    function reads. kv_bits: keys, values, queries and probabilities of attention; 16: floating.
    grain: a step for each tensor (fitted) or for each token (computed while the program runs).
    """

    weight_bits: int
    activation_bits: int
    output_bits: int
    silu_bits: int
    kv_bits: int
    grain: str = "tensor"

    @property
    def name(self) -> str:
        """`w4a4`."""
        return f"w{self.weight_bits}a{self.activation_bits}"

    @property
    def weights_only(self) -> bool:
        """Whether activations stay as they are."""
        return self.activation_bits == 16


def parse_scheme(
    text: str,
    *,
    output: int | None = None,
    silu: int | None = None,
    kv: int | None = None,
    activations: str = "tensor",
) -> Scheme:
    """A scheme from `wNaM`. The others default to: 8 bits for the output layer and for what an
    activation function reads (those of the scheme if they are more), kv as the activations.

    Raises ElkError for anything else."""
    match = _SCHEME.fullmatch(text)
    if match is None or int(match[1]) not in WEIGHT_BITS or int(match[2]) not in ACTIVATION_BITS:
        raise ElkError(
            f"unknown quantisation scheme {text!r}",
            hint="wNaM with N = 2, 4 or 8 bits a weight and M = 2, 4, 8 or 16 an activation:"
            " w4a4, w8a8, w2a8, w4a16 (weights only), …",
        )
    weights, acts = int(match[1]), int(match[2])
    if activations not in GRAINS:
        raise ElkError(
            f"unknown grain of steps {activations!r}", hint=f"one of {', '.join(GRAINS)}"
        )
    for what, bits in (("output", output), ("silu", silu), ("kv", kv)):
        if bits is not None and bits not in ACTIVATION_BITS:
            raise ElkError(f"{what} of {bits} bits", hint="2, 4, 8 or 16 (floating-point)")
    return Scheme(
        weights,
        acts,
        output if output is not None else 8,
        silu if silu is not None else (16 if acts == 16 else 8),
        kv if kv is not None else acts,
        activations,
    )

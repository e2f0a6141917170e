"""What is quantised to how many bits: the scheme and the options of `te-quantize`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from elk_ir.errors import ElkError
from elk_ir.quant.integers import integer_type

WEIGHT_BITS = (2, 4, 8)
ACTIVATION_BITS = (2, 4, 8, 16)
GRAINS = ("tensor", "token")

F8 = "float8_e4m3fn"
"""The type of `f8`: four bits of exponent, three of mantissa, no infinities."""

_SCHEME = re.compile(r"w(f8|\d+)a(\d+)(?:kv(f8|\d+))?")


@dataclass(frozen=True)
class Scheme:
    """Bits of each kind of tensor. 16 activation bits: they stay floating-point numbers.

    output_bits: weights and activations of the output layer (its weights only where activations
    stay numbers; 16: it stays as it is). silu_bits: what an activation
    function reads. kv_bits: keys, values, queries and probabilities of attention (caches only where
    activations stay numbers); 16: floating. weights_float, kv_float: stored as eight-bit floats.
    grain: a step for each tensor (fitted) or for each token (computed while the program runs).
    """

    weight_bits: int
    activation_bits: int
    output_bits: int
    silu_bits: int
    kv_bits: int
    grain: str = "tensor"
    weights_float: bool = False
    kv_float: bool = False

    @property
    def name(self) -> str:
        """`w4a4`, or `wf8a16kvf8`."""
        weights = "f8" if self.weights_float else str(self.weight_bits)
        kv = ""
        if self.weights_only and self.kv_bits != 16:
            kv = "kvf8" if self.kv_float else f"kv{self.kv_bits}"
        return f"w{weights}a{self.activation_bits}{kv}"

    @property
    def stored_kv(self) -> str | None:
        """The type of caches that attention reads as numbers; None where they are numbers, or
        attention multiplies integers."""
        if not self.weights_only or self.kv_bits == 16:
            return None
        return F8 if self.kv_float else integer_type(self.kv_bits)

    def weight_type(self, bits: int) -> str:
        """The type of a weight of `bits` bits."""
        return F8 if self.weights_float and bits == 8 else integer_type(bits)

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
    """A scheme from `wNaM` or `wNaMkvK`, N and K bits or `f8`. The others default to: 8 bits for
    the output layer and for what an activation function reads (those of the scheme if they are
    more), kv as the activations.

    Raises ElkError for anything else."""
    match = _SCHEME.fullmatch(text)
    floats = (False, False) if match is None else (match[1] == "f8", match[3] == "f8")
    bits = [] if match is None else [8 if n == "f8" else int(n or 0) for n in match.groups()]
    if (
        not bits
        or bits[0] not in WEIGHT_BITS
        or bits[1] not in ACTIVATION_BITS
        or (bits[2] and bits[2] not in ACTIVATION_BITS)
    ):
        raise ElkError(
            f"unknown quantisation scheme {text!r}",
            hint="wNaM with N = 2, 4 or 8 bits a weight and M = 2, 4, 8 or 16 an activation:"
            " w4a4, w8a8, w2a8, w4a16 (weights only), …; kvK behind it for K bits of the cache; f8"
            " for N or K stores eight-bit floats: w8a16kv8, wf8a16kvf8, …",
        )
    weights, acts, cache = bits
    if any(floats) and acts != 16:
        raise ElkError(
            f"{text}: products of {acts}-bit activations are of integers",
            hint="f8 is how weights and caches are stored that are widened: say a16",
        )
    if kv is not None and cache and kv != cache:
        raise ElkError(f"{text}, but kv of {kv} bits", hint="say it once")
    kv = kv or cache or None
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
        *floats,
    )

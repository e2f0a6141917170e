"""Weightless ONNX graphs of decoders from a configuration: ask about a model without its weights.

    python -m elk_ir.frontend.decoder_graph config.json -o model.onnx --phase decode

`config.json` has the field names of Hugging Face. The graph is built with `onnx.helper` alone: no
weights, no framework. Weights are external data of a file that need not exist; everything but
numbers works without it, and `elk run --random-weights` makes them up. docs/onnx.md has the fields.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elk_ir.errors import ElkError, ModelError
from elk_ir.finite import is_finite

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 20
DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = ("silu", "relu", "gelu", "gelu_pytorch_tanh")
MOST = 1 << 31
"""Below this are the counts of a configuration."""
FAMILIES = ("llama", "mistral", "qwen2", "granite", "opt")

REFUSED: dict[str, tuple[Any, ...]] = {
    "num_local_experts": (None, 0, 1),
    "num_experts": (None, 0, 1),
    "rope_scaling": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "do_layer_norm_before": (None, True),
}
"""Fields that change the graph in ways that are not built, and the values that do not."""


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder: attention, then a feed-forward network, each with a norm before and a residual.

    norm: `rms` or `layer`. gated: activation(gate) x up, else activation(up). rotary: rotary
    embedding with base `theta`, else `positions` learned ones, the first `position_offset` unused.
    window: keys that a query sees, its own included (None: all). scale: of scores (None: one over
    the root of head_dim); embeddings, what is added to the residual, and logits have their own.
    bias: of attention's products; ffn_bias: of the others.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm: str = "rms"
    epsilon: float = 1e-5
    activation: str = "silu"
    gated: bool = True
    rotary: bool = True
    theta: float = 10_000.0
    positions: int = 0
    position_offset: int = 0
    window: int | None = None
    scale: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    tied: bool = False
    dtype: str = "float16"

    def __post_init__(self) -> None:
        counts = ["hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab"]
        counts += [] if self.window is None else ["window"]
        for name in counts:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 < value < MOST:
                raise ModelError(f"{name} is {value!r}, not a count below {MOST:,}")
        for name in ("epsilon", "theta", "embedding_scale", "residual_scale", "logits_scale"):
            value = getattr(self, name)
            if not is_finite(value) or value < 0 or (name == "theta" and value == 0):
                raise ModelError(f"{name} is {value!r}, not a positive number")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{self.heads} attention heads do not divide among {self.kv_heads} KV heads"
            )
        if self.head_dim % 2 and self.rotary:
            raise ModelError(f"rotary embeddings need an even head size, not {self.head_dim}")
        for name, known in (
            ("norm", ("rms", "layer")),
            ("activation", ACTIVATIONS),
            ("dtype", DTYPES),
        ):
            if getattr(self, name) not in known:
                raise ModelError(
                    f"{name} {getattr(self, name)!r} is not known",
                    hint=f"one of {', '.join(known)}",
                )

    @property
    def parameters(self) -> int:
        """Numbers in the weights, a tied output layer counted once."""
        from math import prod

        return sum(prod(shape) for shape in _Builder(self, "decode", 1, None).weights().values())


def _inverse(value: object) -> float:
    """One over a number; what is none stays, and is refused with the rest."""
    return 1.0 / value if is_finite(value) else cast(float, value)


def config_from_json(fields: Mapping[str, Any]) -> DecoderConfig:
    """A configuration in Hugging Face's field names. Raises ModelError for a field that is missing
    or has no graph here."""

    def need(*names: str) -> Any:
        for name in names:
            if fields.get(name) is not None:
                return fields[name]
        raise ModelError(f"the configuration has no {names[0]!r}")

    family = fields.get("model_type", "llama")
    if family not in FAMILIES:
        raise ModelError(
            f"model_type {family!r} has no graph here",
            hint=f"{', '.join(FAMILIES)}; for others export the model, or give a DecoderConfig",
        )
    for name, harmless in REFUSED.items():
        if fields.get(name) not in harmless:
            raise ModelError(f"{name} = {fields[name]!r} has no graph here")
    hidden, heads = need("hidden_size"), need("num_attention_heads")
    head_dim = fields.get("head_dim")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        head_dim = hidden // heads
    opt = family == "opt"
    if opt and fields.get("word_embed_proj_dim", hidden) != hidden:
        raise ModelError("word_embed_proj_dim differs from hidden_size: this has no graph here")
    window, theta = fields.get("sliding_window"), fields.get("rope_theta", 10_000.0)
    if fields.get("use_sliding_window") is False:
        window = None
    given = fields.get("torch_dtype") or fields.get("dtype") or "float16"
    return DecoderConfig(
        hidden=hidden,
        layers=need("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=head_dim or 0,
        ffn=need("ffn_dim" if opt else "intermediate_size"),
        vocab=need("vocab_size"),
        norm="layer" if opt else "rms",
        epsilon=1e-5 if opt else fields.get("rms_norm_eps", 1e-6),
        activation=need("activation_function" if opt else "hidden_act"),
        gated=not opt,
        rotary=not opt,
        theta=float(theta) if is_finite(theta) else theta,
        positions=need("max_position_embeddings") + 2 if opt else 0,
        position_offset=2 if opt else 0,
        window=window,
        scale=fields.get("attention_multiplier"),
        embedding_scale=fields.get("embedding_multiplier") or 1.0,
        residual_scale=fields.get("residual_multiplier") or 1.0,
        logits_scale=_inverse(fields.get("logits_scaling") or 1.0),
        bias=opt or family == "qwen2" or bool(fields.get("attention_bias")),
        output_bias=opt or bool(fields.get("attention_bias")),
        ffn_bias=opt or bool(fields.get("mlp_bias")),
        tied=bool(fields.get("tie_word_embeddings", opt)),
        dtype=str(given).removeprefix("torch."),
    )


def decoder_graph(
    config: DecoderConfig,
    *,
    phase: str = "decode",
    length: int | None = None,
    seed: int | None = None,
    weights_file: str = "model.weights",
) -> ModelProto:
    """The graph of a decoder.

    phase: `decode` (one token a sequence; inputs `input_ids` and `position_ids` [batch, 1] and
    `past_key_values.L.key` and `.value` [batch, kv_heads, past_sequence_length, head_dim]; outputs
    `logits` and `present.L.…`, one entry longer) or `prefill` (`length` tokens; no past; `logits`
    are those of the last position). batch and past_sequence_length are symbolic. seed: weights are
    random and in the graph; without one they are external data in `weights_file`.
    """
    if phase not in ("decode", "prefill"):
        raise ModelError(f"phase {phase!r} is not known", hint="decode or prefill")
    if phase == "prefill" and (length is None or length < 1):
        raise ModelError("a prefill needs a length of at least one token")
    return _Builder(config, phase, 1 if length is None else length, seed, weights_file).model()


@dataclass
class _Builder:
    config: DecoderConfig
    phase: str
    length: int
    seed: int | None
    weights_file: str = "model.weights"
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    constants: dict[object, str] = field(default_factory=dict)

    # ------------------------------------------------------------------ weights

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights by name, in file order; matrices are [in, out]."""
        c = self.config
        query, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        found: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (c.vocab, c.hidden)}
        if not c.rotary:
            found["embed_positions.weight"] = (c.positions, c.hidden)

        def norm(name: str) -> None:
            found[f"{name}.weight"] = (c.hidden,)
            if c.norm == "layer":
                found[f"{name}.bias"] = (c.hidden,)

        def product(name: str, rows: int, columns: int, bias: bool) -> None:
            found[f"{name}.weight"] = (rows, columns)
            if bias:
                found[f"{name}.bias"] = (columns,)

        for layer in range(c.layers):
            at = f"layers.{layer}."
            norm(at + "input_norm")
            product(at + "q_proj", c.hidden, query, c.bias)
            product(at + "k_proj", c.hidden, kv, c.bias)
            product(at + "v_proj", c.hidden, kv, c.bias)
            product(at + "o_proj", query, c.hidden, c.output_bias)
            norm(at + "post_attention_norm")
            if c.gated:
                product(at + "gate_proj", c.hidden, c.ffn, c.ffn_bias)
            product(at + "up_proj", c.hidden, c.ffn, c.ffn_bias)
            product(at + "down_proj", c.ffn, c.hidden, c.ffn_bias)
        norm("norm")
        if not c.tied:
            found["lm_head.weight"] = (c.hidden, c.vocab)
        return found

    def declare_weights(self) -> None:
        from math import prod

        import numpy as np
        from onnx import TensorProto

        rng = None if self.seed is None else np.random.default_rng(self.seed)
        offset, width = 0, 4 if self.config.dtype == "float32" else 2
        for name, shape in self.weights().items():
            if rng is not None:
                value = rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 16)
                if name.endswith("norm.weight"):
                    value += 1.0
                self.initializers.append(self.tensor(name, value))
                continue
            tensor = TensorProto(
                name=name, dims=shape, data_type=self.element, data_location=TensorProto.EXTERNAL
            )
            size = prod(shape) * width
            for key, entry in (
                ("location", self.weights_file),
                ("offset", str(offset)),
                ("length", str(size)),
            ):
                tensor.external_data.add(key=key, value=entry)
            offset += -(-size // 64) * 64
            self.initializers.append(tensor)

    @property
    def element(self) -> int:
        """The ONNX element type of the weights."""
        from onnx import TensorProto

        return getattr(TensorProto, self.config.dtype.upper().replace("FLOAT32", "FLOAT"))

    def tensor(self, name: str, value: np.ndarray) -> TensorProto:
        """An inline tensor of the weights' type."""
        import numpy as np
        from onnx import helper, numpy_helper

        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self.element))
        return numpy_helper.from_array(np.ascontiguousarray(value).astype(dtype), name)

    # ------------------------------------------------------------------ nodes

    def add(self, op: str, name: str, *ins: str, **attributes: Any) -> str:
        """A node of one result, which has its name."""
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(ins), [name], name=name, **attributes))
        return name

    def ints(self, *values: int) -> str:
        """A constant vector of integers."""
        import numpy as np
        from onnx import numpy_helper

        if values not in self.constants:
            name = self.constants[values] = f"ints.{len(self.constants)}"
            self.initializers.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return self.constants[values]

    def number(self, value: float, element: int | None = None) -> str:
        """A constant scalar, of the weights' type unless another one is given."""
        import numpy as np
        from onnx import helper, numpy_helper

        kind = self.element if element is None else element
        key = ("number", value, kind)
        if key not in self.constants:
            name = self.constants[key] = f"number.{len(self.constants)}"
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
            self.initializers.append(numpy_helper.from_array(np.array(value).astype(dtype), name))
        return self.constants[key]

    def product(self, at: str, name: str, x: str, bias: bool) -> str:
        out = self.add("MatMul", f"{at}{name}", x, f"{at}{name}.weight")
        return self.add("Add", f"{at}{name}.biased", out, f"{at}{name}.bias") if bias else out

    def scaled(self, name: str, x: str, scale: float) -> str:
        """`x` times a constant."""
        return x if scale == 1.0 else self.add("Mul", name, x, self.number(scale))

    def norm(self, name: str, x: str) -> str:
        """The norm of the hidden states, in float32."""
        from onnx import TensorProto

        c = self.config
        if c.norm == "layer":
            ins = (x, f"{name}.weight", f"{name}.bias")
            return self.add("LayerNormalization", name, *ins, axis=-1, epsilon=c.epsilon)
        wide = self.add("Cast", f"{name}.wide", x, to=TensorProto.FLOAT)
        square = self.add("Pow", f"{name}.square", wide, self.number(2.0, TensorProto.FLOAT))
        mean = self.add("ReduceMean", f"{name}.mean", square, self.ints(-1), keepdims=1)
        safe = self.add("Add", f"{name}.eps", mean, self.number(c.epsilon, TensorProto.FLOAT))
        root = self.add("Sqrt", f"{name}.root", safe)
        unit = self.add("Div", f"{name}.unit", wide, root)
        back = self.add("Cast", f"{name}.cast", unit, to=self.element)
        return self.add("Mul", name, f"{name}.weight", back)

    def activation(self, name: str, x: str) -> str:
        kind = self.config.activation
        if kind == "relu":
            return self.add("Relu", name, x)
        if kind == "silu":
            return self.add("Mul", name, x, self.add("Sigmoid", f"{name}.sigmoid", x))
        return self.add("Gelu", name, x, approximate="none" if kind == "gelu" else "tanh")

    def rotation(self) -> tuple[str, str]:
        """cos and sin of the positions: [batch, 1, length, head_dim]."""
        import numpy as np
        from onnx import TensorProto, numpy_helper

        c = self.config
        steps = np.arange(0, c.head_dim, 2, dtype=np.float64) / c.head_dim
        inverse = (c.theta**-steps).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(inverse[None], "rotary.inverse"))
        wide = self.add("Cast", "rotary.positions", "position_ids", to=TensorProto.FLOAT)
        column = self.add("Unsqueeze", "rotary.column", wide, self.ints(1, 3))
        angle = self.add("Mul", "rotary.half", column, "rotary.inverse")
        both = self.add("Concat", "rotary.angle", angle, angle, axis=-1)
        cos = self.add("Cos", "rotary.cos", both)
        sin = self.add("Sin", "rotary.sin", both)
        return (
            self.add("Cast", "rotary.cos.cast", cos, to=self.element),
            self.add("Cast", "rotary.sin.cast", sin, to=self.element),
        )

    def rotated(self, name: str, x: str, rotation: tuple[str, str]) -> str:
        half, last = self.config.head_dim // 2, self.ints(-1)
        low = self.add("Slice", f"{name}.low", x, self.ints(0), self.ints(half), last)
        high = self.add("Slice", f"{name}.high", x, self.ints(half), self.ints(2 * half), last)
        turned = self.add(
            "Concat", f"{name}.swapped", self.add("Neg", f"{name}.neg", high), low, axis=-1
        )
        straight = self.add("Mul", f"{name}.cos", x, rotation[0])
        return self.add(
            "Add", f"{name}.rotary", straight, self.add("Mul", f"{name}.sin", turned, rotation[1])
        )

    def heads(self, name: str, x: str, count: int) -> str:
        """[batch, length, heads x head_dim] to [batch, heads, length, head_dim]."""
        shape = self.ints(0, 0, count, self.config.head_dim)
        split = self.add("Reshape", f"{name}.split", x, shape)
        return self.add("Transpose", f"{name}.heads", split, perm=[0, 2, 1, 3])

    def repeated(self, name: str, x: str) -> str:
        """Keys or values once for every query head."""
        c = self.config
        if c.kv_heads == c.heads:
            return x
        wide = self.add("Unsqueeze", f"{name}.wide", x, self.ints(2))
        many = self.add(
            "Expand", f"{name}.many", wide, self.ints(1, 1, c.heads // c.kv_heads, 1, 1)
        )
        return self.add("Reshape", f"{name}.repeated", many, self.ints(0, c.heads, -1, c.head_dim))

    def mask(self) -> str | None:
        """Added to the scores of a prefill: queries see earlier keys, within the window."""
        import numpy as np
        from onnx import TensorProto, numpy_helper

        if self.phase == "decode":
            return None
        rows = np.arange(self.length, dtype=np.int64)
        for name, value in (("mask.rows", rows[:, None]), ("mask.columns", rows[None])):
            self.initializers.append(numpy_helper.from_array(value, name))
        seen = self.add("LessOrEqual", "mask.causal", "mask.columns", "mask.rows")
        window = self.config.window
        if window is not None and window < self.length:
            far = self.add("Sub", "mask.distance", "mask.rows", "mask.columns")
            near = self.add("Less", "mask.near", far, self.number(window, TensorProto.INT64))
            seen = self.add("And", "mask.seen", seen, near)
        return self.add("Where", "mask", seen, self.number(0.0), self.number(-60_000.0))

    # ------------------------------------------------------------------ the model

    def attention(self, at: str, x: str, layer: int, rotation: Any, mask: str | None) -> str:
        c = self.config
        q = self.heads(f"{at}q", self.product(at, "q_proj", x, c.bias), c.heads)
        k = self.heads(f"{at}k", self.product(at, "k_proj", x, c.bias), c.kv_heads)
        v = self.heads(f"{at}v", self.product(at, "v_proj", x, c.bias), c.kv_heads)
        if rotation is not None:
            q, k = self.rotated(f"{at}q", q, rotation), self.rotated(f"{at}k", k, rotation)
        key, value = f"present.{layer}.key", f"present.{layer}.value"
        if self.phase == "decode":
            k = self.add("Concat", key, f"past_key_values.{layer}.key", k, axis=2)
            v = self.add("Concat", value, f"past_key_values.{layer}.value", v, axis=2)
            if c.window is not None:
                # The query is the last one: it sees the last keys.
                ends = (self.ints(-c.window), self.ints(2**63 - 1), self.ints(2))
                k = self.add("Slice", f"{at}k.window", k, *ends)
                v = self.add("Slice", f"{at}v.window", v, *ends)
        else:
            k, v = self.add("Identity", key, k), self.add("Identity", value, v)
        k, v = self.repeated(f"{at}k", k), self.repeated(f"{at}v", v)
        turned = self.add("Transpose", f"{at}k.turned", k, perm=[0, 1, 3, 2])
        scores = self.add("MatMul", f"{at}scores", q, turned)
        scale = c.head_dim**-0.5 if c.scale is None else c.scale
        scores = self.add("Mul", f"{at}scaled", scores, self.number(scale))
        if mask is not None:
            scores = self.add("Add", f"{at}masked", scores, mask)
        weights = self.add("Softmax", f"{at}softmax", scores, axis=-1)
        mixed = self.add("MatMul", f"{at}mixed", weights, v)
        rows = self.add("Transpose", f"{at}rows", mixed, perm=[0, 2, 1, 3])
        joined = self.add("Reshape", f"{at}joined", rows, self.ints(0, 0, c.heads * c.head_dim))
        return self.product(at, "o_proj", joined, c.output_bias)

    def feed_forward(self, at: str, x: str) -> str:
        c = self.config
        up = self.product(at, "up_proj", x, c.ffn_bias)
        if c.gated:
            gate = self.activation(f"{at}act", self.product(at, "gate_proj", x, c.ffn_bias))
            inner = self.add("Mul", f"{at}gated", gate, up)
        else:
            inner = self.activation(f"{at}act", up)
        return self.product(at, "down_proj", inner, c.ffn_bias)

    def model(self) -> ModelProto:
        from onnx import TensorProto

        c = self.config
        self.declare_weights()
        x = self.add("Gather", "embedding", "embed_tokens.weight", "input_ids", axis=0)
        x = self.scaled("embedding.scaled", x, c.embedding_scale)
        rotation = self.rotation() if c.rotary else None
        if not c.rotary:
            shift = self.number(c.position_offset, TensorProto.INT64)
            rows = self.add("Add", "positions", "position_ids", shift)
            learned = self.add(
                "Gather", "position_embedding", "embed_positions.weight", rows, axis=0
            )
            x = self.add("Add", "embedded", x, learned)
        mask = self.mask()
        for layer in range(c.layers):
            at = f"layers.{layer}."
            mixed = self.attention(at, self.norm(f"{at}input_norm", x), layer, rotation, mask)
            mixed = self.scaled(f"{at}attention.scaled", mixed, c.residual_scale)
            x = self.add("Add", f"{at}residual", x, mixed)
            inner = self.feed_forward(at, self.norm(f"{at}post_attention_norm", x))
            inner = self.scaled(f"{at}ffn.scaled", inner, c.residual_scale)
            x = self.add("Add", f"{at}out", x, inner)
        if self.phase == "prefill":
            ends = (self.ints(-1), self.ints(2**63 - 1), self.ints(1))
            x = self.add("Slice", "last", x, *ends)
        x = self.scaled("norm.scaled", self.norm("norm", x), c.logits_scale)
        head = "lm_head.weight"
        if c.tied:
            head = self.add("Transpose", "lm_head", "embed_tokens.weight", perm=[1, 0])
        self.add("MatMul", "logits", x, head)
        return self.finished()

    def finished(self) -> ModelProto:
        from onnx import TensorProto, helper

        c, seen = self.config, "past_sequence_length"

        def info(name: str, element: int, *shape: int | str) -> Any:
            return helper.make_tensor_value_info(name, element, list(shape))

        pairs = [(i, kind) for i in range(c.layers) for kind in ("key", "value")]
        ins = [
            info(name, TensorProto.INT64, "batch", self.length)
            for name in ("input_ids", "position_ids")
        ]
        outs = [info("logits", self.element, "batch", 1, c.vocab)]
        after: int | str = self.length
        if self.phase == "decode":
            after = "total_sequence_length"
            ins += [
                info(
                    f"past_key_values.{i}.{k}", self.element, "batch", c.kv_heads, seen, c.head_dim
                )
                for i, k in pairs
            ]
        outs += [
            info(f"present.{i}.{k}", self.element, "batch", c.kv_heads, after, c.head_dim)
            for i, k in pairs
        ]
        graph = helper.make_graph(self.nodes, "decoder", ins, outs, self.initializers)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=9, producer_name="elk-ir")


def main(argv: Sequence[str] | None = None) -> int:
    """The script; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m elk_ir.frontend.decoder_graph",
        description="A weightless ONNX graph of a decoder from its config.json.",
    )
    parser.add_argument("config", type=Path, metavar="config.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="MODEL.onnx")
    parser.add_argument("--phase", default="decode", choices=("decode", "prefill"))
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a prefill")
    parser.add_argument("--layers", type=int, metavar="N", help="only so many layers")
    parser.add_argument("--dtype", choices=DTYPES, help="of weights and activations")
    parser.add_argument(
        "--random-weights", type=int, metavar="SEED", help="random weights in the graph itself"
    )
    args = parser.parse_args(argv)
    try:
        try:
            fields = json.loads(args.config.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"cannot be read: {error.strerror}", where=str(args.config)) from None
        except ValueError as error:
            raise ModelError(f"is no JSON: {error}", where=str(args.config)) from None
        if not isinstance(fields, dict):
            raise ModelError("holds no object of fields", where=str(args.config))
        if args.layers is not None:
            fields["num_hidden_layers"] = args.layers
        if args.dtype is not None:
            fields["torch_dtype"] = args.dtype
        config = config_from_json(fields)
        model = decoder_graph(
            config,
            phase=args.phase,
            length=args.length,
            seed=args.random_weights,
            weights_file=f"{args.output.stem}.weights",
        )
        args.output.write_bytes(model.SerializeToString())
    except ElkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{args.output}: {config.layers} layers, {config.parameters:,} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())

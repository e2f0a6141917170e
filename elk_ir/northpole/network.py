"""A network as a NorthPole appliance sees it: tasks on units, in blocks that a card can hold.

A *task* is one operator, counted for one user and one token. A *block* is a run of tasks between
two points where a single tensor (the residual) crosses: the smallest thing that starts on one card
and ends on another without extra traffic. A *layer* is one or more blocks. Units are in the names;
counts are elements and operations, so that a precision can be chosen later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from elk_ir.errors import ElkError, ModelError
from elk_ir.plan.domain import DimKind, Operator


class Unit(StrEnum):
    """Where an operator runs."""

    MATRIX = "matrix"
    """The vector-matrix units of all cores, integers."""
    VECTOR = "vector"
    """The FP16 vector units."""
    ACTIVATION = "activation"
    """The activation units: one function of an element."""
    HOST = "host"


@dataclass(frozen=True)
class Precision:
    """Bits of weights, activations and KV entries, and of the output layer (both operands).

    Products run at the rate of their wider operand. Norm scales and quantisation steps are fp16.
    """

    name: str
    weight_bits: int
    activation_bits: int
    kv_bits: int
    head_bits: int = 8

    @property
    def product_bits(self) -> int:
        """The type in which weights meet activations."""
        return max(self.weight_bits, self.activation_bits)

    @property
    def attention_bits(self) -> int:
        """The type in which queries meet keys, and probabilities values."""
        return max(self.activation_bits, self.kv_bits)


def parse_precision(text: str) -> Precision:
    """`w4a4`, `w8a8`, `w4a8`, `w2a4`, or with KV bits of their own `w4a8kv8`.

    KV entries have the activations' bits unless given; the output layer has 8 (weights of 8 bits or
    fewer and activations of 8). Raises ElkError for anything the integer units cannot multiply.
    """
    import re

    match = re.fullmatch(r"w(\d+)a(\d+)(?:kv(\d+))?", text)
    if match is None:
        raise ElkError(
            f"'{text}' is not a precision", hint="write w4a4, w8a8, w4a8, w2a2 or w4a8kv8"
        )
    weight, activation = int(match[1]), int(match[2])
    kv = activation if match[3] is None else int(match[3])
    for what, bits in (("weights", weight), ("activations", activation), ("KV entries", kv)):
        if bits not in (2, 4, 8):
            raise ElkError(
                f"{text}: {what} of {bits} bits, but the vector-matrix units take 2, 4 or 8",
                hint="quantise them: w4a4 has both operands in 4 bits",
            )
    return Precision(text, weight, activation, kv)


@dataclass(frozen=True)
class Task:
    """One operator, for one user and one token.

    `macs` multiply-adds with weights; `kv_macs` multiply-adds, `kv_elements` resident elements and
    `kv_vector_ops` fp16 operations for each position of the context; `vector_ops` fp16 operations;
    `phases` dependent steps with a barrier after each. `matrix` is (reduction, outputs) of the
    product with weights, `heads` the KV heads: what placement divides over the cores.
    """

    name: str
    kind: str
    unit: Unit
    phases: int = 1
    macs: float = 0.0
    vector_ops: float = 0.0
    activation_ops: float = 0.0
    weight_elements: int = 0
    constant_elements: int = 0
    step_count: int = 0
    kv_macs: float = 0.0
    kv_elements: int = 0
    kv_vector_ops: float = 0.0
    matrix: tuple[int, int] | None = None
    heads: int = 0
    working_elements: int = 0


@dataclass(frozen=True)
class Block:
    """Tasks between two points where one tensor crosses; `phases` is their critical path.

    `in_elements` and `out_elements` cross the border for one user and token.
    """

    name: str
    tasks: tuple[Task, ...]
    phases: int
    in_elements: int
    out_elements: int

    @property
    def weight_elements(self) -> int:
        """Elements of the weights that are multiplied."""
        return sum(t.weight_elements for t in self.tasks)

    @property
    def kv_elements(self) -> int:
        """KV elements of one user for each position."""
        return sum(t.kv_elements for t in self.tasks)

    @property
    def macs(self) -> float:
        """Multiply-adds with weights, for one user and token."""
        return sum(t.macs for t in self.tasks)


@dataclass(frozen=True)
class Layer:
    """Blocks that belong together: one iteration of the model's loop, or one block of a graph
    without a loop."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Network:
    """A model: what the host does first, the layers, the output layer (None: none).

    `context` is the KV length that the graph was built for; 0 when it has no state. `loop` says
    whether the layers are iterations of one loop. `batch` users are in the graph.
    """

    name: str
    batch: int
    context: int
    host: tuple[Task, ...]
    layers: tuple[Layer, ...]
    head: Block | None
    loop: bool

    @property
    def macs(self) -> float:
        """Multiply-adds with weights, for one user and token."""
        blocks = [b for layer in self.layers for b in layer.blocks]
        return sum(b.macs for b in blocks) + (self.head.macs if self.head else 0.0)


_VECTOR_KINDS = frozenset({"map", "reduce", "softmax", "normalize", "concat", "pool"})
_ACTIVATIONS = frozenset({"sigmoid", "tanh", "erf", "exp", "log", "sin", "cos", "gelu", "sqrt"})
EXP_OPS = 5.0
"""fp16 operations of softmax for each score: scale, subtract, exponential, sum, divide."""


def task_of(
    name: str,
    operator: Operator,
    *,
    users: int,
    tokens: int = 1,
    weights: Sequence[int] = (),
    states: Mapping[int, int] | None = None,
    context: int = 0,
    requantizes: bool = False,
    on_host: bool = False,
) -> Task:
    """The task of `operator`, in which operands `weights` are resident and `states` are KV caches,
    each with the axis of its positions.

    Its parallel dimensions cover `users`, each with `tokens`; work on all `context` positions of
    the caches counts for each of them. What only `requantizes` belongs to the phase of what it
    follows. Raises ModelError for an operator that no unit supports.
    """
    states = states or {}
    batch = users * tokens
    out_elements = sum(prod(r.shape) for r in operator.results)
    moving = [a for i, a in enumerate(operator.operands) if i not in (*weights, *states)]
    working = (sum(prod(a.shape) for a in moving) + out_elements) // batch
    phases = 2 if operator.broadcasts_back or operator.kind == "attention" else 1
    resident = sum(prod(operator.operands[i].shape) for i in weights)
    if on_host:
        return Task(name, operator.kind, Unit.HOST, 0, constant_elements=resident)
    if operator.kind == "attention":
        return _attention(name, operator, users, tokens, states, working)
    if operator.kind == "contract" and states:
        return _cache_product(name, operator, users, tokens, states, working)
    if operator.kind == "contract":
        return _product(name, operator, batch, weights, working)
    if operator.kind not in _VECTOR_KINDS:
        raise ModelError(
            f"no unit of a NorthPole core runs '{operator.kind}'"
            f" ({operator.flops:,.0f} operations on {working * batch:,} elements)",
            where=name,
            hint="the units are: vector-matrix (integers), FP16 vector, activation functions",
        )
    functions = _functions(operator)
    scores = context > 1 and any(d.extent == context for d in operator.dims)
    if scores and operator.kind == "softmax":
        # Its statistics are merged with the products on both sides, as in a fused attention.
        phases = 0
    ops = operator.flops / batch
    if operator.kind == "softmax":
        ops = EXP_OPS * prod(operator.extents) / batch
    return Task(
        name,
        operator.kind,
        Unit.ACTIVATION if functions else Unit.VECTOR,
        0 if requantizes else phases,
        vector_ops=0.0 if scores else ops,
        activation_ops=0.0 if scores else functions * out_elements / batch,
        kv_vector_ops=(ops + functions * out_elements / batch) / context if scores else 0.0,
        constant_elements=resident,
        working_elements=working,
    )


def _functions(operator: Operator) -> int:
    """Activation functions an element goes through in the operator's body or epilogue."""
    body = operator.param.get("body") or operator.param.get("epilogue")
    if body is None:
        return 0
    return sum(instr.op in _ACTIVATIONS for instr in body.instrs)


def _product(
    name: str, operator: Operator, batch: int, weights: Sequence[int], working: int
) -> Task:
    extents = operator.extents
    macs = prod(extents) / batch
    multiplied = [i for i in weights if len(operator.operands[i].dims & set(operator.reductions))]
    elements = sum(prod(operator.operands[i].shape) for i in multiplied)
    matrix = None
    if multiplied:
        dims = operator.operands[multiplied[0]].dims
        inner = prod(extents[d] for d in dims if operator.dims[d].kind is not DimKind.PARALLEL)
        outer = prod(extents[d] for d in dims if operator.dims[d].kind is DimKind.PARALLEL)
        matrix = (inner, outer)
    out = sum(prod(r.shape) for r in operator.results) / batch
    epilogue = operator.param.get("epilogue")
    return Task(
        name,
        operator.kind,
        Unit.MATRIX,
        1,
        macs=macs,
        vector_ops=0.0 if epilogue is None else epilogue.flops * out,
        activation_ops=_functions(operator) * out,
        weight_elements=elements,
        constant_elements=sum(prod(operator.operands[i].shape) for i in weights) - elements,
        step_count=0 if matrix is None else matrix[1],
        matrix=matrix,
        working_elements=working,
    )


def head_dims(operator: Operator, states: Mapping[int, int]) -> tuple[int, ...]:
    """Dimensions along which caches have heads: parallel ones of a cache that another operand has
    too, without users (its first axis) and positions."""
    found: set[int] = set()
    for v, axis in states.items():
        own = operator.operands[v]
        others = {d for w, a in enumerate(operator.operands) if w not in states for d in a.dims}
        outside = {d for j in (0, axis) for d, _ in own.axes[j].terms}
        found |= {
            d for d in own.dims & others - outside if operator.dims[d].kind is DimKind.PARALLEL
        }
    return tuple(sorted(found))


def _cache_product(
    name: str,
    operator: Operator,
    users: int,
    tokens: int,
    states: Mapping[int, int],
    working: int,
) -> Task:
    """A product with a cache: queries by keys, or probabilities by values."""
    ((v, axis),) = states.items()
    shape = operator.operands[v].shape
    length = shape[axis]
    out = sum(prod(r.shape) for r in operator.results) / (users * tokens)
    epilogue = operator.param.get("epilogue")
    ops = 0.0 if epilogue is None else epilogue.flops * out
    on_scores = any(d in operator.result_dims for d, _ in operator.operands[v].axes[axis].terms)
    return Task(
        name,
        operator.kind,
        Unit.MATRIX,
        1,
        vector_ops=0.0 if on_scores else ops,
        kv_macs=prod(operator.extents) / (users * tokens * length),
        kv_elements=prod(shape) // (users * length),
        kv_vector_ops=ops / length if on_scores else 0.0,
        heads=max(1, prod(operator.extents[d] for d in head_dims(operator, states))),
        working_elements=working,
    )


def _attention(
    name: str,
    operator: Operator,
    users: int,
    tokens: int,
    states: Mapping[int, int],
    working: int,
) -> Task:
    batch = users * tokens
    (kv,) = operator.reductions
    length = operator.extents[kv]
    rows = prod(d.extent for d in operator.dims if d.kind is DimKind.PARALLEL) / batch
    products = sum(d.extent for d in operator.dims if d.kind is DimKind.LOCAL)
    heads = prod(
        operator.extents[d]
        for d in operator.operands[1].dims
        if operator.dims[d].kind is DimKind.PARALLEL
    )
    entries = sum(prod(operator.operands[i].shape) for i in states) // users
    fixed = not states
    return Task(
        name,
        operator.kind,
        Unit.MATRIX,
        2,
        macs=rows * products * length if fixed else 0.0,
        vector_ops=rows * EXP_OPS * length if fixed else 0.0,
        kv_macs=0.0 if fixed else rows * products,
        kv_elements=0 if fixed else entries // length,
        kv_vector_ops=0.0 if fixed else rows * EXP_OPS,
        heads=max(1, heads // users),
        working_elements=working,
    )


@dataclass(frozen=True)
class Decoder:
    """Shape of a Llama-like decoder, for models that exist as figures only."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int

    def network(self, context: int) -> Network:
        """The same blocks that the graph of such a model gives."""
        head_dim = self.hidden // self.heads
        kv_width = self.kv_heads * head_dim
        norm = Task(
            "norm",
            "normalize",
            Unit.VECTOR,
            2,
            vector_ops=5.0 * self.hidden,
            constant_elements=self.hidden,
            working_elements=2 * self.hidden,
        )

        def product(name: str, k: int, n: int, extra: float = 0.0, functions: int = 0) -> Task:
            return Task(
                name,
                "contract",
                Unit.MATRIX,
                macs=float(k * n),
                vector_ops=extra * n,
                activation_ops=float(functions * n),
                weight_elements=k * n,
                step_count=n,
                matrix=(k, n),
                working_elements=k + n,
            )

        rotary = [
            Task(
                f"rotary_{which}",
                "map",
                Unit.VECTOR,
                vector_ops=4.0 * width,
                working_elements=2 * width,
            )
            for which, width in (("q", self.hidden), ("k", kv_width))
        ]
        attention = Task(
            "attention",
            "attention",
            Unit.MATRIX,
            2,
            kv_macs=2.0 * self.hidden,
            kv_elements=2 * kv_width,
            kv_vector_ops=EXP_OPS * self.heads,
            heads=self.kv_heads,
            working_elements=2 * self.hidden,
        )
        mixer = (
            norm,
            product("q", self.hidden, self.hidden),
            product("k", self.hidden, kv_width),
            product("v", self.hidden, kv_width),
            *rotary,
            attention,
            product("o", self.hidden, self.hidden, extra=1.0),
        )
        mlp = (
            norm,
            product("gate", self.hidden, self.ffn),
            product("up", self.hidden, self.ffn, extra=3.0, functions=1),
            product("down", self.ffn, self.hidden, extra=1.0),
        )
        layers = tuple(
            Layer(
                f"layer {i}",
                (
                    Block(f"layer {i} attention", mixer, 7, self.hidden, self.hidden),
                    Block(f"layer {i} mlp", mlp, 5, self.hidden, self.hidden),
                ),
            )
            for i in range(self.layers)
        )
        tasks = (norm, product("logits", self.hidden, self.vocabulary))
        head = Block("head", tasks, 3, self.hidden, self.vocabulary)
        return Network(self.name, 1, context, (), layers, head, True)

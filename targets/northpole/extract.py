"""From a te module to the `Network` that is mapped on NorthPole cards.

The loop over layers gives the layers; what follows it the output layer; what precedes it runs on
the host (embedding, rotary tables) unless it multiplies activations by weights, as a patch
embedding does. A graph without a loop is one block after another, the last of which is the output
layer. Only models with KV state, which generate tokens, have an output layer of its own precision.
Blocks begin and end where one tensor crosses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block as IRBlock
from xdsl.ir import Operation, SSAValue

from elk_ir.dialects.location import node_name, node_names
from elk_ir.dialects.te.interface import StructuredOp
from elk_ir.dialects.te.quantization import DequantizeOp, QuantizeOp
from elk_ir.dialects.te.structure import (
    AppendOp,
    GlobalKind,
    GlobalOp,
    LoadOp,
    RepeatOp,
    YieldOp,
)
from elk_ir.dialects.types import shape_dtype
from elk_ir.errors import ModelError
from elk_ir.northpole.network import Block, Layer, Network, Precision, Task, Unit, task_of

_INTEGERS = {"int8": 8, "uint8": 8, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


@dataclass(frozen=True)
class Part:
    """A block and the operations of the te function that it was made of."""

    block: Block
    ops: tuple[Operation, ...]


@dataclass(frozen=True)
class _Graph:
    """What every operator's task depends on, and the parts that were cut so far."""

    users: int
    tokens: int
    context: int = 0
    axes: dict[str, int] = field(default_factory=dict, compare=False)
    parts: list[Part] = field(default_factory=list, compare=False)


def network_of(module: ModuleOp) -> Network:
    """The network of a te module's function. Raises ModelError for what cannot be mapped: no
    function, operators that are not te, operators that no unit runs."""
    return network_and_parts(module)[0]


def network_and_parts(module: ModuleOp) -> tuple[Network, tuple[Part, ...]]:
    """The network, and which operations its blocks stand for (all others are the host's). Raises
    ModelError as `network_of`."""
    function = _function(module)
    states = [
        op
        for op in module.ops
        if isinstance(op, GlobalOp) and op.kind.data is GlobalKind.STATE and op.axis is not None
    ]
    graph, context = _graph(function, states)
    block = function.body.block
    loops = [op for op in block.ops if isinstance(op, RepeatOp)]
    model = module.attributes.get("onnx.model")
    name = model.data if isinstance(model, StringAttr) else function.sym_name.data
    if not loops:
        ops = list(block.ops)
        tables = [op for op in _structured(ops) if _reads_table(op)]
        on_host = _feeding([r for op in tables for r in op.results], ops) | _positions(ops)
        host = tuple(_task(graph, op, on_host=True) for op in _structured(ops) if op in on_host)
        carried = [r for op in tables for r in op.results]
        rest = [op for op in ops if op not in on_host]
        blocks = _blocks(graph, block, rest, "block", carried=carried)
        head = blocks[-1] if context and len(blocks) > 1 else None
        flat = tuple(Layer(b.name, (b,)) for b in blocks if b is not head)
        network = Network(name, graph.users, context, host, flat, head, False)
        return _checked(network), tuple(graph.parts)
    host, stem = _before(graph, block, loops[0])
    layers: list[Layer] = [Layer(b.name, (b,)) for b in stem]
    for i, loop in enumerate(loops):
        if i:
            between = _between(block, loops[i - 1], loop)
            layers += [Layer(b.name, (b,)) for b in _blocks(graph, block, between, "block")]
        body = _blocks(graph, loop.body.block, list(loop.body.block.ops), "block")
        for _ in range(loop.count.value.data):
            layers.append(Layer(f"layer {len(layers)}", body))
    rest = _between(block, loops[-1], None)
    tail = _whole(graph, rest, "head")
    head = tail if context and tail is not None and tail.weight_elements else None
    if tail is not None and head is None:
        layers.append(Layer("tail", (tail,)))
    network = Network(name, graph.users, context, host, tuple(layers), head, True)
    return _checked(network), tuple(graph.parts)


def is_quantized(parts: Sequence[Part]) -> bool:
    """Whether all products on the cards are of integers."""
    products = _products(parts)
    return bool(products) and not _floating(products)


def _products(parts: Sequence[Part]) -> list[StructuredOp]:
    return [op for part in parts for op in part.ops if _holds_product(op)]  # pyright: ignore[reportReturnType]


def _factors(op: StructuredOp) -> tuple[str, ...]:
    """Types of what is multiplied: the two operands of a product, or query, keys and values."""
    operator = op.operator()
    return tuple(a.dtype for a in operator.operands[: 3 if operator.kind == "attention" else 2])


def _floating(products: Sequence[StructuredOp]) -> list[StructuredOp]:
    return [op for op in products if any(t not in _INTEGERS for t in _factors(op))]


def graph_precision(parts: Sequence[Part], head: Block | None) -> Precision:
    """The precision that the graph itself has: the widest of its products, those of the output
    layer apart. Raises ModelError when a product is not of integers, saying how many are not."""
    products = _products(parts)
    floating = _floating(products)
    if floating or not products:
        types = sorted({t for op in floating for t in _factors(op) if t not in _INTEGERS})
        raise ModelError(
            f"{len(floating)} of {len(products)} products are of {', '.join(types) or 'nothing'},"
            " the vector-matrix units take int8, int4 and int2",
            where=node_name(floating[0]) if floating else None,
            hint="quantise the model (--quantize), or name the precision to plan for (w4a4, w8a8)",
        )
    in_head = {op for part in parts if part.block is head for op in part.ops}
    layers = [op for op in products if op not in in_head] or products
    attentions = [op for op in layers if op.operator().kind == "attention"]
    cached = [op for op in layers if any(isinstance(v.owner, AppendOp) for v in op.ins)]
    multiplied = [op for op in layers if op not in (*attentions, *cached)]

    def widest(ops: Sequence[StructuredOp], first: int, last: int, default: int) -> int:
        return max((_INTEGERS[t] for op in ops for t in _factors(op)[first:last]), default=default)

    activations = widest(multiplied, 0, 1, 8)
    weights = widest(multiplied, 1, 2, 8)
    kv = max(widest(attentions, 1, 3, 0), widest(cached, 1, 2, 0)) or activations
    output = widest([op for op in products if op in in_head], 0, 2, 8)
    suffix = "" if kv == activations else f"kv{kv}"
    return Precision(f"w{weights}a{activations}{suffix}", weights, activations, kv, output)


def _is_product(op: StructuredOp) -> bool:
    operator = op.operator()
    cached = any(isinstance(v.owner, AppendOp) for v in op.ins)
    return operator.kind == "attention" or (
        operator.kind == "contract" and (cached or bool(_weights(op)))
    )


def _function(module: ModuleOp) -> FuncOp:
    found = [op for op in module.ops if isinstance(op, FuncOp) and op.body.blocks]
    if len(found) != 1:
        raise ModelError(
            f"a module with one function is mapped, this one has {len(found)}",
            hint="run convert-onnx-to-te,te-pipeline first",
        )
    allowed = (StructuredOp, LoadOp, AppendOp, RepeatOp, YieldOp, ReturnOp, FuncOp)
    strange = [op for op in found[0].walk() if not isinstance(op, allowed)]
    if strange:
        names = sorted({op.name for op in strange})
        raise ModelError(
            f"no unit of a NorthPole core runs {', '.join(names)} ({len(strange)} operations)",
            where=node_name(strange[0]),
            hint="run convert-onnx-to-te,te-pipeline first",
        )
    return found[0]


def _graph(function: FuncOp, states: Sequence[GlobalOp]) -> tuple[_Graph, int]:
    """Users, tokens a user, and positions of the caches."""
    if not states:
        shapes = [shape_dtype(a)[0] for a in function.body.block.args]
        return _Graph(next((s[0] for s in shapes if s), 1), 1), 0
    shape, _ = shape_dtype(states[0].type)
    axis = states[0].axis
    assert axis is not None
    users = shape[0] if axis.value.data else 1
    symbol = states[0].sym_name.data
    tokens = 1
    for op in function.walk():
        if isinstance(op, AppendOp) and op.state.root_reference.data == symbol:
            tokens = shape_dtype(op.entries)[0][axis.value.data]
    axes = {s.sym_name.data: s.axis.value.data for s in states if s.axis is not None}
    return _Graph(users, tokens, shape[axis.value.data], axes), shape[axis.value.data]


def _between(block: IRBlock, first: Operation, last: Operation | None) -> list[Operation]:
    ops = list(block.ops)
    start = ops.index(first) + 1
    return ops[start:] if last is None else ops[start : ops.index(last)]


def _before(
    graph: _Graph, block: IRBlock, loop: RepeatOp
) -> tuple[tuple[Task, ...], tuple[Block, ...]]:
    """What the host does, and the blocks that come before the loop on cards."""
    ops = _between_start(block, loop)
    feeding = _feeding(loop.inits, ops)
    products = [op for op in feeding if isinstance(op, StructuredOp) and _is_product(op)]
    if not products:
        return tuple(_task(graph, op, on_host=True) for op in _structured(ops)), ()
    tables = [op for op in _structured(ops) if op in feeding and _reads_table(op)]
    carried = [r for op in tables for r in op.results]
    stem = feeding - _feeding(carried, ops)
    host = tuple(_task(graph, op, on_host=True) for op in _structured(ops) if op not in stem)
    chosen = [op for op in ops if op in stem]
    return host, _blocks(graph, block, chosen, "stem", loop.inits, carried)


def _reads_table(op: StructuredOp) -> bool:
    """Whether `op` picks rows of a weight: an embedding, which stays with the host."""
    return op.operator().kind == "gather" and 0 in _weights(op)


def _positions(ops: Sequence[Operation]) -> set[Operation]:
    """Operations that depend on graph inputs of indices and on weights only, and on no embedding:
    rotary tables and masks, the same for every layer, so the host computes them once a token."""
    moving: set[SSAValue] = set()
    found: set[Operation] = set()
    for op in _structured(ops):
        inputs = [v for v in op.operands if not isinstance(v.owner, LoadOp)]
        fixed = [v.owner in found or _is_index_input(v) for v in inputs]
        if inputs and all(fixed) and not _reads_table(op) and not moving & set(inputs):
            found.add(op)
        else:
            moving |= set(op.results)
    return found


def _is_index_input(value: SSAValue) -> bool:
    """Whether `value` is a graph input of indices; int8 and int4 ones are quantised activations."""
    if isinstance(value.owner, Operation):
        return False
    return shape_dtype(value)[1] in ("int32", "int64", "bool")


def _between_start(block: IRBlock, loop: Operation) -> list[Operation]:
    ops = list(block.ops)
    return ops[: ops.index(loop)]


def _feeding(values: Sequence[SSAValue], ops: Sequence[Operation]) -> set[Operation]:
    """Operations among `ops` that `values` depend on."""
    inside, found = set(ops), set[Operation]()
    work = [v.owner for v in values]
    while work:
        op = work.pop()
        if isinstance(op, Operation) and op in inside and op not in found:
            found.add(op)
            work += [v.owner for v in op.operands]
    return found


def _structured(ops: Sequence[Operation]) -> list[StructuredOp]:
    return [op for op in ops if isinstance(op, StructuredOp)]


def _weights(op: StructuredOp) -> tuple[int, ...]:
    return tuple(i for i, v in enumerate(op.ins) if isinstance(v.owner, LoadOp))


def _task(graph: _Graph, op: StructuredOp, *, on_host: bool = False) -> Task:
    states = {
        i: graph.axes[v.owner.state.root_reference.data]
        for i, v in enumerate(op.ins)
        if isinstance(v.owner, AppendOp)
    }
    names = node_names(op)
    return task_of(
        names[0] if names else op.results[0].name_hint or op.name,
        op.operator(),
        users=graph.users,
        tokens=graph.tokens,
        weights=_weights(op),
        states=states,
        context=graph.context,
        requantizes=isinstance(op, QuantizeOp | DequantizeOp),
        on_host=on_host,
    )


def _blocks(
    graph: _Graph,
    block: IRBlock,
    ops: Sequence[Operation],
    name: str,
    results: Sequence[SSAValue] = (),
    carried: Sequence[SSAValue] = (),
) -> tuple[Block, ...]:
    """Cut `ops` where one tensor crosses, each part holding at least one product. `carried` come
    from the host into the first part, `results` are used after the last one."""
    parts = list(_parts([*block.args, *carried], ops, results))
    found = [b for i, part in enumerate(parts) if (b := _whole(graph, part, f"{name} {i}"))]
    return tuple(found)


def _parts(
    entering: Sequence[SSAValue], ops: Sequence[Operation], results: Sequence[SSAValue]
) -> Iterator[list[Operation]]:
    moving = [op for op in ops if isinstance(op, StructuredOp | AppendOp | YieldOp | ReturnOp)]
    position = {op: i for i, op in enumerate(moving)}
    last_use: dict[SSAValue, int] = {}
    for op in moving:
        for value in op.operands:
            last_use[value] = position[op]
    for value in results:
        last_use[value] = len(moving)
    live = {a for a in entering if a in last_use and shape_dtype_or_none(a)}
    part: list[Operation] = []
    for i, op in enumerate(moving):
        part.append(op)
        live |= {r for r in op.results if last_use.get(r, -1) > i}
        live = {v for v in live if last_use[v] > i}
        rest = moving[i + 1 :]
        products = any(_holds_product(o) for o in part), any(_holds_product(o) for o in rest)
        if len(live) == 1 and all(products):
            yield part
            part = []
    if part:
        yield part


def shape_dtype_or_none(value: SSAValue) -> tuple[int, ...] | None:
    """The shape of a tensor; None for other values."""
    try:
        return shape_dtype(value)[0]
    except ValueError:
        return None


def _holds_product(op: Operation) -> bool:
    return isinstance(op, StructuredOp) and _is_product(op)


def _whole(graph: _Graph, ops: Sequence[Operation], name: str) -> Block | None:
    """All of `ops` as one block; None when nothing is computed."""
    structured = _structured(ops)
    if not structured:
        return None
    tasks: list[Task] = []
    depth: dict[Operation, int] = {}
    inside = set(ops)
    for op in ops:
        sources = [v.owner for v in op.operands if v.owner in inside]
        before = max((depth[o] for o in sources if isinstance(o, Operation)), default=0)
        if isinstance(op, StructuredOp):
            task = _task(graph, op)
            tasks.append(task)
            before += task.phases
        depth[op] = before
    batch = graph.users * graph.tokens
    crossing = [
        v
        for op in ops
        for v in op.operands
        if v.owner not in inside and not isinstance(v.owner, LoadOp)
    ]
    wide = max((prod(shape_dtype_or_none(v) or (0,)) for v in crossing), default=0)
    out = prod(shape_dtype(structured[-1].results[0])[0])
    block = Block(name, tuple(tasks), max(depth.values()), wide // batch, out // batch)
    graph.parts.append(Part(block, tuple(ops)))
    return block


def _checked(network: Network) -> Network:
    """Raises ModelError when there is nothing for the cards."""
    tasks = [t for layer in network.layers for b in layer.blocks for t in b.tasks]
    if not any(t.unit is Unit.MATRIX for t in tasks):
        raise ModelError(f"{network.name} has no product with weights: nothing to put on cards")
    return network

"""Where a scheme quantises a model: which products, and which tensors in front of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from elk_ir.dialects.location import node_name
from elk_ir.dialects.te import (
    AppendOp,
    BodyAttr,
    ContractOp,
    LoadOp,
    MapOp,
    RepeatOp,
    SoftmaxOp,
    UpdateOp,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr
from elk_ir.dialects.te.interface import StructuredOp, dims_of, domain_attr, identity_map
from elk_ir.dialects.types import tensor_type
from elk_ir.numerics.body import is_float
from elk_ir.passes.te_affine import bounds, substitute_map
from elk_ir.passes.te_bodies import BodyGraph, is_exact_cast
from elk_ir.passes.te_quant_attention import split_attention
from elk_ir.passes.te_quant_support import Number, constants_of, stepped_body, two_float_factors
from elk_ir.passes.te_support import (
    dtype_of_value,
    extents_of,
    globals_of,
    owner,
    replace_op,
    shape_of,
    symbol_of,
)
from elk_ir.plan.domain import DimKind
from elk_ir.quant.integers import integer_type
from elk_ir.quant.scheme import Scheme

ACTIVATIONS = ("sigmoid", "erf")
"""Scalar functions of which the argument is quantised to the scheme's `silu` bits: those of SiLU,
gates and GELU. (tanh also caps scores softly, where eight bits are too few.)"""


class Kind(StrEnum):
    """What a quantised tensor is."""

    ACTIVATION = "activation"
    FUNCTION = "argument of an activation function"
    STATE = "state"


@dataclass(frozen=True, eq=False)
class Site:
    """Operand `operand` of `op` is to be quantised to `dtype`, in each of `layers` iterations of
    the loop around it. `value` is the tensor; for the state called `state` it is what the append
    yields, or a static cache with its new rows.

    fitted: its steps come from calibration inputs."""

    op: Operation
    operand: int
    kind: Kind
    dtype: str
    value: SSAValue
    layers: int
    fitted: bool
    state: str | None = None

    @property
    def part(self) -> tuple[slice, ...]:
        """The box of the tensor that an activation function reads; of others everything."""
        if self.kind is not Kind.FUNCTION or not isinstance(self.op, StructuredOp):
            return ()
        domain = self.op.domain.data
        ends = [bounds(axis, extents_of(domain)) for axis in domain.operands[self.operand]]
        return tuple(slice(max(0, low), high + 1) for low, high in ends)

    @property
    def name(self) -> str:
        """The node that reads the tensor."""
        return node_name(self.op)


@dataclass(frozen=True)
class Bits:
    """Of a product: bits of its weight (if one factor is a weight) and of its other factors."""

    weight: int
    other: int


# ---------------------------------------------------------------------- products


def role(value: SSAValue, module: ModuleOp, number: Number) -> str:
    """What a factor is: `weight`, `packed` (a weight of integers already), `state`, or else
    `probability` (a softmax's result) or `activation`."""
    op = owner(value)
    if isinstance(op, LoadOp) and globals_of(module)[symbol_of(op)].value is not None:
        return "weight"
    if isinstance(op, AppendOp):
        return "state"
    if isinstance(op, SoftmaxOp):
        return "probability"
    if isinstance(op, StructuredOp) and (found := stepped_body(op, number)) is not None:
        if isinstance(owner(op.ins[found.q]), LoadOp):
            return "packed"
    return "activation"


def bits_of(op: ContractOp, roles: tuple[str, ...], scheme: Scheme) -> Bits | None:
    """How a product is quantised; None if it stays as it is."""
    weights = [r for r in roles if r in ("weight", "packed")]
    if len(weights) == 2 or not _sums(op):
        return None
    if not weights:
        apart = scheme.kv_bits != 16 and not scheme.weights_only
        return Bits(scheme.kv_bits, scheme.kv_bits) if apart else None
    if is_output(op):
        if scheme.output_bits == 16:
            return None
        return Bits(scheme.output_bits, 16 if scheme.weights_only else scheme.output_bits)
    return Bits(scheme.weight_bits, scheme.activation_bits)


def _sums(op: ContractOp) -> bool:
    """Whether a product sums over anything: outer products of two vectors are no work."""
    return any(d.kind is not DimKind.PARALLEL and d.extent > 1 for d in op.domain.data.dims)


def is_output(op: ContractOp) -> bool:
    """Whether the product is the last one before an output of the graph."""
    work: list[SSAValue] = list(op.results)
    seen: set[Operation] = set()
    while work:
        for use in work.pop().uses:
            user = use.operation
            if isinstance(user, ReturnOp):
                return True
            if user in seen or isinstance(user, ContractOp) or not isinstance(user, StructuredOp):
                continue
            seen.add(user)
            work.extend(user.results)
    return False


def layers_of(op: Operation) -> int:
    """Iterations of the loop around an operation; 1 outside of loops."""
    parent = op.parent_op()
    return parent.count.value.data if isinstance(parent, RepeatOp) else 1


# ---------------------------------------------------------------------- activation functions


def function_argument(op: StructuredOp) -> int | None:
    """The operand that an activation function in the body of `op` reads (for the accumulator of a
    product -1); None without one."""
    body = op.properties.get("body") or op.properties.get("epilogue")
    if not isinstance(body, BodyAttr) or not isinstance(op, MapOp | ContractOp):
        return None
    first = 0 if isinstance(op, MapOp) else 1
    types = [dtype_of_value(v) for v in op.ins]
    if isinstance(op, ContractOp):
        factors = 2 if op.factors is None else op.factors.value.data
        types = [op.operator().stats[0].dtype, *types[factors:]]
    graph = BodyGraph()
    args = [graph.input(i, t) for i, t in enumerate(types)]
    results = graph.inline(body.data, args)
    for i in graph.reached(results):
        if graph.nodes[i].op not in ACTIVATIONS:
            continue
        found = _source(graph, graph.nodes[i].args[0])
        if found is None or not is_float(types[found]):
            continue
        return found if not first else (-1 if found == 0 else found + len(op.ins) - len(types))
    return None


def _source(graph: BodyGraph, i: int) -> int | None:
    """The input that node i scales or casts."""
    while (node := graph.nodes[i]).op != "input":
        if node.op == "cast" and is_exact_cast(graph.nodes[node.args[0]].dtype, node.dtype):
            i = node.args[0]
        elif node.op in ("mul", "div") and graph.constant(node.args[1]) is not None:
            i = node.args[0]
        elif node.op == "mul" and graph.constant(node.args[0]) is not None:
            i = node.args[1]
        else:
            return None
    return node.value if isinstance(node.value, int) else None


def part_functions(module: ModuleOp) -> None:
    """Give activation functions of a product's own sum an operation of their own, which then reads
    the sum as a tensor."""
    for op in list(module.walk()):
        if not isinstance(op, ContractOp) or len(op.outs) != 1 or not two_float_factors(op):
            continue
        if function_argument(op) != -1 or op.epilogue is None:
            continue
        # The sum as float32, and a map of the epilogue over it at the result's own indices.
        domain = op.domain.data
        shape = shape_of(op.outs[0])
        if any(a.simple_dim is None and a.terms for a in domain.results[0]):
            continue
        place = {a.terms[0][0]: j for j, a in enumerate(domain.results[0]) if a.terms}
        if any(d not in place for m in domain.operands[2:] for a in m for d, _ in a.terms):
            continue
        total = tensor_type(shape, op.operator().stats[0].dtype)
        product = ContractOp.create(
            operands=list(op.ins[:2]),
            result_types=[total],
            properties={
                "domain": DomainAttr(Domain(domain.dims, domain.operands[:2], domain.results))
            },
        )
        product.location = op.location
        product.outs[0].name_hint = op.outs[0].name_hint
        here = identity_map(len(shape))
        assign = {d: here[j] for d, j in place.items()}
        maps = [substitute_map(m, assign) for m in domain.operands[2:]]
        function = MapOp.of(
            [product.outs[0], *op.ins[2:]],
            op.epilogue.data,
            [op.outs[0].type],
            domain_attr(dims_of(shape), [here, *maps], [here]),
        )
        function.location = op.location
        block = op.parent
        assert block is not None
        block.insert_op_before(product, op)
        replace_op(op, function)


# ---------------------------------------------------------------------- all of them


@dataclass(frozen=True)
class Product:
    """What the two factors of a product are, and to how many bits they are quantised."""

    roles: tuple[str, ...]
    bits: Bits


def prepare(module: ModuleOp, scheme: Scheme) -> list[Site]:
    """Take operators apart where `scheme` quantises inside of them, and list the sites."""
    if scheme.kv_bits != 16 and not scheme.weights_only:
        split_attention(module)
    if scheme.silu_bits != 16:
        part_functions(module)
    return find_sites(module, scheme)


def find_products(module: ModuleOp, scheme: Scheme) -> dict[Operation, Product]:
    """The products that `scheme` quantises, in program order."""
    number = constants_of(module)
    products: dict[Operation, Product] = {}
    for op in module.walk():
        if isinstance(op, ContractOp) and two_float_factors(op):
            roles = tuple(role(v, module, number) for v in op.ins[:2])
            bits = bits_of(op, roles, scheme)
            if bits is not None:
                products[op] = Product(roles, bits)
    return products


def find_sites(module: ModuleOp, scheme: Scheme) -> list[Site]:
    """The tensors that `scheme` quantises with a step of their own, in program order."""
    products = find_products(module, scheme)
    fitted = scheme.grain != "token"
    states: set[str] = set()
    sites: list[Site] = []
    for op in module.walk():
        product = products.get(op)
        if product is not None and product.bits.other != 16:
            sites += _factor_sites(op, product, states, fitted)
        if scheme.stored_kv is not None and isinstance(op, AppendOp | UpdateOp):
            name, seen = op.state.root_reference.data, cache_seen(op)
            if name not in states and is_float(dtype_of_value(op.entries)) and seen is not None:
                states.add(name)
                kind = (Kind.STATE, scheme.stored_kv, seen, layers_of(op), True)
                maker = owner(seen)
                assert maker is not None
                sites.append(Site(maker, 0, *kind, state=name))
        if scheme.silu_bits != 16 and isinstance(op, MapOp | ContractOp):
            i = function_argument(op)
            if i is None or i < 0:
                continue
            dtype = integer_type(scheme.silu_bits)
            sites.append(Site(op, i, Kind.FUNCTION, dtype, op.ins[i], layers_of(op), fitted))
    return sites


def cache_seen(op: AppendOp | UpdateOp) -> SSAValue | None:
    """The tensor that holds the old entries of a cache and the new ones. Of a static cache that is
    what an operation makes of the old one; None where nothing does."""
    if isinstance(op, AppendOp):
        return op.result
    block = op.parent
    assert block is not None
    for load in block.ops:
        if not isinstance(load, LoadOp) or symbol_of(load) != op.state.root_reference.data:
            continue
        for use in load.result.uses:
            for result in use.operation.results:
                if result.type == load.result.type:
                    return result
    return None


def _factor_sites(op: Operation, product: Product, states: set[str], fitted: bool) -> list[Site]:
    sites: list[Site] = []
    for i, what in enumerate(product.roles):
        value, bits = op.operands[i], product.bits.other
        if what == "state":
            append = owner(value)
            assert isinstance(append, AppendOp)
            name = append.state.root_reference.data
            if name not in states:
                states.add(name)
                dtype, layers = integer_type(bits), layers_of(append)
                kind = (Kind.STATE, dtype, append.result, layers, True)
                sites.append(Site(append, 0, *kind, state=name))
        elif what in ("activation", "probability"):
            dtype = integer_type(bits, signed=what != "probability")
            sites.append(Site(op, i, Kind.ACTIVATION, dtype, value, layers_of(op), fitted))
    return sites

"""The rewriting of `te-quantize`: integers in front of products, numbers again behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, IntegerAttr, ModuleOp, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue, Use

from elk_ir.dialects.element_types import array_from_dense, dense_from_array, element_type_name
from elk_ir.dialects.te import (
    AppendOp,
    AttentionOp,
    BodyAttr,
    CombinerAttr,
    ContractOp,
    DequantizeOp,
    GlobalKindAttr,
    GlobalOp,
    LoadOp,
    MapOp,
    QuantizeOp,
    ReduceOp,
    UpdateOp,
    WeightAttr,
)
from elk_ir.dialects.te.attrs import Domain, DomainAttr, Map
from elk_ir.dialects.te.interface import StructuredOp, dims_of, domain_attr, identity_map
from elk_ir.dialects.te.ops import Combiner
from elk_ir.dialects.te.quantization import Step, dequantized, quantized
from elk_ir.dialects.te.structure import GlobalKind
from elk_ir.dialects.types import element_type, shape_dtype, tensor_type
from elk_ir.frontend.weights import WeightRef
from elk_ir.numerics.scalars import BodyBuilder
from elk_ir.passes.te_affine import drop_dims, substitute_map
from elk_ir.passes.te_bodies import BodyGraph
from elk_ir.passes.te_canonicalize import erase_dead_code
from elk_ir.passes.te_quant_scale import read_widened, scale_attention
from elk_ir.passes.te_quant_sites import Kind, Product, Site, find_products
from elk_ir.passes.te_quant_support import (
    Factor,
    absorbed,
    constants_of,
    integer_contract,
    read_integers,
    step_dims,
    stepped_body,
)
from elk_ir.passes.te_support import (
    add_global,
    dtype_of_value,
    fresh_symbol,
    globals_of,
    is_move,
    new_global,
    owner,
    replace_op,
    replace_value,
    shape_of,
    symbol_of,
)
from elk_ir.plan.domain import AxisExpr, Dim, DimKind
from elk_ir.quant.integers import integer_range, integer_type
from elk_ir.quant.scheme import Scheme
from elk_ir.quant.steps import channel_steps, quantize_channels

ONE: Map = (AxisExpr(),)
"""How a tensor of one element is read."""

TINY = 1e-12
"""The smallest step that a program computes: a token of zeros is zeros."""


class Rewriter:
    """Quantises one module; `steps` has the fitted steps of the sites, one a layer."""

    def __init__(self, module: ModuleOp, scheme: Scheme, sites: Sequence[Site], steps: dict):
        self.module, self.scheme = module, scheme
        self.number = constants_of(module)
        self.table = globals_of(module)
        self.products = find_products(module, scheme)
        self.sites: dict[Operation, list[Site]] = {}
        for site in sites:
            self.sites.setdefault(site.op, []).append(site)
        self.steps: dict[Site, list[float]] = steps
        self.state_steps: dict[str, list[float]] = {}
        self._weights: dict[tuple[str, str, tuple[int, ...]], tuple[str, str]] = {}
        self._loaded: dict[tuple[str, Block], LoadOp] = {}
        self._integers: dict[tuple[object, ...], tuple[SSAValue, Step]] = {}
        self._step_tensors: dict[tuple[float, ...], str] = {}
        self._widened: list[tuple[AttentionOp, int, Step]] = []
        self._numbers: set[Operation] = set()

    def run(self) -> None:
        """Rewrite everything, then let producers quantise their own results."""
        for site in [s for sites in self.sites.values() for s in sites]:
            if site.state is not None:
                self.state(site.state, site)
        for op in list(self.module.walk()):
            if not isinstance(op, StructuredOp):
                continue
            functions = [s for s in self.sites.get(op, ()) if s.kind is Kind.FUNCTION]
            product = self.products.get(op) if isinstance(op, ContractOp) else None
            now: StructuredOp = op
            if functions:
                now = self.function(op, functions[0])
            if product is not None:
                assert isinstance(now, ContractOp)
                self.product(now, product, {s.operand: s for s in self.sites.get(op, ())})
        scale_attention(self._widened)
        for op in list(self.module.walk()):
            if isinstance(op, DequantizeOp) and op in self._numbers:
                read_widened(op)
        for op in list(self.module.walk()):
            if isinstance(op, QuantizeOp) and (made := absorbed(op)) is not None:
                producer = owner(op.ins[0])
                assert producer is not None and producer.parent is not None
                producer.parent.insert_op_before(made, producer)
                replace_value(op.outs[0], made.outs[0])
                for dead in (op, producer):
                    dead.detach()
                    dead.erase()
        erase_dead_code(self.module)

    # ------------------------------------------------------------------ steps

    def step(self, values: Sequence[float], at: Operation, hint: str) -> Step:
        """The step of each layer as a number, or inside a loop as a tensor that is loaded."""
        if len(values) == 1:
            return float(np.float32(values[0]))
        key = tuple(values)
        if key not in self._step_tensors:
            array = np.asarray(values, np.float32).reshape(-1, 1)
            type_ = tensor_type([1], "float32")
            self._step_tensors[key] = self.constant(f"{hint}.step", array, type_, len(values))
        return self.load(self._step_tensors[key], tensor_type([1], "float32"), at), ONE

    def constant(self, name: str, array: np.ndarray, type_: Attribute, layers: int | None) -> str:
        """A new constant; its symbol."""
        return self.weight(name, dense_from_array(array), type_, layers)

    def weight(self, name: str, value: Attribute, type_: Attribute, layers: int | None) -> str:
        """A new weight; its symbol is `name` or like it."""
        symbol = fresh_symbol(name, self.table)
        op = new_global(
            symbol,
            kind=GlobalKindAttr(GlobalKind.WEIGHT),
            type=type_,
            stack=None if layers is None else IntegerAttr(layers, i64),
            value=value,
        )
        add_global(self.module, op)
        self.table[symbol] = op
        return symbol

    def load(self, symbol: str, type_: Attribute, at: Operation) -> SSAValue:
        """The global's value at `at`: loaded once, at the start of the block."""
        block = at.parent
        assert block is not None
        found = self._loaded.get((symbol, block))
        if found is None:
            stacked = self.table[symbol].stack is not None
            found = LoadOp(symbol, type_, block.args[0] if stacked else None)
            found.result.name_hint = symbol.replace(".", "_")
            found.location = at.location
            assert block.first_op is not None
            block.insert_op_before(found, block.first_op)
            self._loaded[symbol, block] = found
        return found.result

    # ------------------------------------------------------------------ tensors

    def integers(
        self, value: SSAValue, dtype: str, site: Site, at: Operation, summed: frozenset[int]
    ) -> tuple[SSAValue, Step]:
        """`value` quantised in front of `at`, and the step in the dimensions of `value`. `summed`:
        the axes that share a step where every token has its own."""
        block = at.parent
        assert block is not None
        key = (value, dtype, block, None if site.fitted else summed)
        known = self._integers.get(key)
        if known is not None:
            return known
        step = self.step_of(value, dtype, site, at, summed)
        made = QuantizeOp.of(value, step, dtype)
        self.insert(made, at, f"{value.name_hint or 'x'}_{dtype}")
        self._integers[key] = (made.outs[0], step)
        return made.outs[0], step

    def step_of(
        self, value: SSAValue, dtype: str, site: Site, at: Operation, summed: frozenset[int]
    ) -> Step:
        """The step of `value` in its own dimensions, fitted or computed in front of `at`."""
        if site.fitted:
            return self.step(self.steps[site], at, value.name_hint or "x")
        return self.token_steps(value, dtype, at, summed)

    def token_steps(
        self, value: SSAValue, dtype: str, at: Operation, summed: frozenset[int]
    ) -> Step:
        """max |x| / high over the axes `summed`, computed by the program."""
        shape = shape_of(value)
        here = identity_map(len(shape))
        b = BodyBuilder([dtype_of_value(value)])
        size = MapOp.of(
            [value],
            b.finish(b.cast(b.apply("abs", b.inputs[0]), "float32")),
            [tensor_type(shape, "float32")],
            domain_attr(dims_of(shape), [here], [here]),
        )
        self.insert(size, at, "size")
        kept = [j for j in range(len(shape)) if j not in summed and shape[j] > 1]
        dims = [
            replace(d, kind=DimKind.PARALLEL if j in kept else DimKind.REDUCTION)
            for j, d in enumerate(dims_of(shape))
        ]
        axes = tuple(here[j] for j in kept) or ONE
        b = BodyBuilder(["float32"])
        scaled = b.inputs[0] * float(np.float32(1 / integer_range(dtype)[1]))
        result = tensor_type([shape[j] for j in kept] or [1], "float32")
        steps = ReduceOp.create(
            operands=[size.outs[0]],
            result_types=[result],
            properties={
                "domain": domain_attr(dims, [here], [axes]),
                "combiner": CombinerAttr(Combiner.MAX),
                "epilogue": BodyAttr(b.finish(b.apply("max", scaled, TINY))),
            },
        )
        self.insert(steps, at, "step")
        return steps.outs[0], axes

    def insert(self, op: StructuredOp, at: Operation, hint: str) -> None:
        """Put `op` before `at`, with its location."""
        op.location = at.location
        op.outs[0].name_hint = hint
        assert at.parent is not None
        at.parent.insert_op_before(op, at)

    def weight_factor(self, op: ContractOp, i: int, dtype: str) -> Factor:
        """Factor i, a weight, as integers with a step for each index that is not summed over."""
        load = owner(op.ins[i])
        assert isinstance(load, LoadOp)
        domain = op.domain.data
        axes = domain.operands[i]
        channels = tuple(
            j
            for j, axis in enumerate(axes)
            if axis.terms and all(domain.dims[d].kind is DimKind.PARALLEL for d, _ in axis.terms)
        )
        symbol = symbol_of(load)
        key = (symbol, dtype, channels)
        if key not in self._weights:
            self._weights[key] = self.quantized_weight(self.table[symbol], dtype, channels)
        integers, steps = self._weights[key]
        shape = shape_of(load.result)
        type_ = tensor_type([shape[j] for j in channels] or [1], "float32")
        return Factor(
            self.load(integers, tensor_type(shape, dtype), op),
            axes,
            (self.load(steps, type_, op), tuple(axes[j] for j in channels) or ONE),
        )

    def quantized_weight(
        self, source: GlobalOp, dtype: str, channels: tuple[int, ...]
    ) -> tuple[str, str]:
        """The weight's integers and their steps, as globals: references stay references."""
        shape, _ = shape_dtype(source.type)
        layers = None if source.stack is None else source.layers
        name = source.sym_name.data
        short = element_type_name(element_type(dtype))
        stacked = tuple(c + 1 for c in channels)
        values: list[Attribute] = []
        for word, make in (("quantize", quantize_channels), ("steps", channel_steps)):
            if isinstance(source.value, WeightAttr):
                values.append(
                    WeightAttr.get(_with_step(source.value.to_ref(), word, short, channels, layers))
                )
                continue
            assert isinstance(source.value, DenseIntOrFPElementsAttr)
            array = array_from_dense(source.value)
            axes = channels if layers is None else (0, *stacked)
            found = make(array, dtype, axes)
            if word == "steps" and layers is not None and not channels:
                found = found.reshape(layers, 1)
            values.append(dense_from_array(found))
        steps_type = tensor_type([shape[c] for c in channels] or [1], "float32")
        return (
            self.weight(f"{name}.{short}", values[0], tensor_type(shape, dtype), layers),
            self.weight(f"{name}.{short}.steps", values[1], steps_type, layers),
        )

    # ------------------------------------------------------------------ state

    def state(self, symbol: str, site: Site) -> None:
        """A cache of integers: its entries are quantised, the host converts at the edge."""
        state, steps = self.table[symbol], self.steps[site]
        self.state_steps[symbol] = steps
        shape, outside = shape_dtype(state.type)
        state.properties["type"] = tensor_type(shape, site.dtype)
        state.properties["steps"] = dense_from_array(np.asarray(steps, np.float32))
        for each in list(self.module.walk()):
            if isinstance(each, AppendOp) and each.state.root_reference.data == symbol:
                step = self.step(steps, each, symbol)
                made = QuantizeOp.of(each.entries, step, site.dtype)
                self.insert(made, each, f"{each.entries.name_hint or 'x'}_{site.dtype}")
                result = tensor_type(shape_of(each.result), site.dtype)
                new = AppendOp(made.outs[0], symbol, result, each.layer)
                new.location = each.location
                self.retyped(each, new, step, outside)
            elif isinstance(each, UpdateOp) and each.state.root_reference.data == symbol:
                made = QuantizeOp.of(each.entries, self.step(steps, each, symbol), site.dtype)
                self.insert(made, each, f"{each.entries.name_hint or 'x'}_{site.dtype}")
                each.operands[list(each.operands).index(each.entries)] = made.outs[0]
            elif isinstance(each, LoadOp) and symbol_of(each) == symbol:
                result = tensor_type(shape_of(each.result), site.dtype)
                new = LoadOp(symbol, result, each.layer)
                new.location = each.location
                self.retyped(each, new, self.step(steps, each, symbol), outside)

    def retyped(self, old: AppendOp | LoadOp, new: AppendOp | LoadOp, step: Step, dtype: str):
        """Put `new`, which yields integers, for `old`; what is no product of integers reads them as
        numbers."""
        assert old.parent is not None
        old.parent.insert_op_before(new, old)
        new.result.name_hint = old.result.name_hint
        others: list[Use] = []
        for use in old.result.uses:
            if isinstance(use.operation, AttentionOp) and use.index in (1, 2):
                self._widened.append((use.operation, use.index, step))
            elif not (use.operation in self.products and use.index < 2):
                others.append(use)
        if others:
            number = DequantizeOp.of(new.result, step, dtype)
            self.insert(number, old, f"{old.result.name_hint or 'x'}_number")
            self._numbers.add(number)
            for use in others:
                use.operation.operands[use.index] = number.outs[0]
        old.result.replace_all_uses_with(new.result)
        old.detach()
        old.erase()

    # ------------------------------------------------------------------ operators

    def product(self, op: ContractOp, product: Product, sites: dict[int, Site]) -> None:
        """A product of floats becomes one of integers, or of floats and integer weights."""
        packed = product.roles.index("packed") if "packed" in product.roles else None
        if product.bits.other == 16:
            self.weight_only(op, product)
            return
        domain = op.domain.data
        block: tuple[int, int] | None = None
        if packed is not None:
            found = read_integers(op.ins[packed], domain.operands[packed], domain, self.number)
            reduced = {d for d, x in enumerate(domain.dims) if x.kind is DimKind.REDUCTION}
            if not isinstance(found, Factor) or step_dims(found) & reduced:
                block = self.block_of(op, packed)
                if block is None:
                    return
                domain = _blocked(domain, *block)
        factors: list[Factor] = []
        for i, what in enumerate(product.roles):
            axes = domain.operands[i]
            if what == "weight":
                factors.append(self.weight_factor(op, i, integer_type(product.bits.weight)))
            elif what == "packed":
                found = self.packed_factor(op.ins[i], axes, domain)
                if found is None:
                    return
                factors.append(found)
            elif what == "state":
                symbol = self.symbol_of_state(op.ins[i])
                step = self.step(self.state_steps[symbol], op, symbol)
                factors.append(Factor(op.ins[i], axes, step))
            else:
                site = sites[i]
                own = op.domain.data
                summed = frozenset(
                    j
                    for j, axis in enumerate(own.operands[i])
                    if any(own.dims[d].kind is not DimKind.PARALLEL for d, _ in axis.terms)
                )
                value, step = self.integers(op.ins[i], site.dtype, site, op, summed)
                if isinstance(step, tuple) and step[1] != ONE:
                    kept = [axis.terms[0][0] for axis in step[1]]
                    step = (step[0], tuple(axes[j] for j in kept))
                factors.append(Factor(value, axes, step))
        if block is None:
            replace_op(op, integer_contract(op, factors, domain))
        else:
            self.by_blocks(op, factors, domain, block[0])

    def weight_only(self, op: ContractOp, product: Product) -> None:
        """A weight that is kept narrow and widened in the product, its steps applied to the sums; a
        packed weight of the model is numbers by then."""
        factors: list[Factor] = []
        for i, what in enumerate(product.roles):
            if what == "weight":
                factors.append(
                    self.weight_factor(op, i, self.scheme.weight_type(product.bits.weight))
                )
            else:
                factors.append(Factor(op.ins[i], op.domain.data.operands[i], 1.0))
        if "weight" in product.roles:
            replace_op(op, integer_contract(op, factors, op.domain.data))

    def symbol_of_state(self, value: SSAValue) -> str:
        op = owner(value)
        if isinstance(op, AppendOp):
            return op.state.root_reference.data
        assert isinstance(op, LoadOp)
        return symbol_of(op)

    def packed_factor(self, value: SSAValue, axes: Map, domain: Domain) -> Factor | None:
        """A weight that the model stores as integers."""
        found = read_integers(value, axes, domain, self.number)
        if not isinstance(found, Factor):
            return None
        reduced = {d for d, x in enumerate(domain.dims) if x.kind is DimKind.REDUCTION}
        return None if step_dims(found) & reduced else found

    def block_of(self, op: ContractOp, packed: int) -> tuple[int, int] | None:
        """(dimension, block) where the steps of a packed weight change along what is summed."""
        source = owner(op.ins[packed])
        assert isinstance(source, StructuredOp)
        found = stepped_body(source, self.number)
        if found is None or not isinstance(found.step, int):
            return None
        spread = owner(source.ins[found.step])
        maps = [source.domain.data.results[0]]
        if isinstance(spread, MapOp) and is_move(spread):
            maps.append(spread.domain.data.results[0])
        domain = op.domain.data
        for axes in maps:
            for j, axis in enumerate(axes):
                read = domain.operands[packed][j].simple_dim
                sizes = sorted(abs(k) for _, k in axis.terms)
                if len(sizes) == 2 and sizes[0] == 1 and read is not None:
                    if domain.dims[read].kind is DimKind.REDUCTION:
                        return read, sizes[1]
        return None

    def by_blocks(
        self, op: ContractOp, factors: Sequence[Factor], domain: Domain, outer: int
    ) -> None:
        """Products of blocks, each exact, as numbers; then their sum."""
        shape = shape_of(op.outs[0])
        blocks = domain.dims[outer].extent
        here: Map = (AxisExpr(((outer, 1),)), *domain.results[0])
        partial = tensor_type([blocks, *shape], "float32")
        apart = replace(domain, results=(here,))
        products = integer_contract(op, factors, apart, plain=partial)
        assert op.parent is not None
        op.parent.insert_op_before(products, op)
        dims = tuple(
            replace(d, kind=DimKind.REDUCTION) if i == outer else d
            for i, d in enumerate(domain.dims)
        )
        summed = Domain(dims, (here, *domain.operands[2:]), domain.results)
        inner = {
            i for i, d in enumerate(domain.dims) if d.kind is not DimKind.PARALLEL and i != outer
        }
        total = ReduceOp.create(
            operands=[products.outs[0], *op.ins[2:]],
            result_types=[r.type for r in op.results],
            properties={
                "domain": DomainAttr(drop_dims(summed, inner)),
                "combiner": CombinerAttr(Combiner.SUM),
                **({} if op.epilogue is None else {"epilogue": op.epilogue}),
            },
        )
        total.location = op.location
        replace_op(op, total)

    def function(self, op: StructuredOp, site: Site) -> StructuredOp:
        """An activation function that reads integers, as numbers again in its own body. What other
        operators read as numbers is rounded to integers in the body, too."""
        place, value = site.operand, op.ins[site.operand]
        dtype = dtype_of_value(value)
        last = frozenset({len(shape_of(value)) - 1})
        apart = value.has_one_use()
        if apart:
            integers, step = self.integers(value, site.dtype, site, op, last)
        else:
            integers, step = value, self.step_of(value, site.dtype, site, op, last)
        domain = op.domain.data
        ins, maps = list(op.ins), list(domain.operands)
        ins[place] = integers
        steps: list[str] = []
        if isinstance(step, tuple):
            kept = [] if step[1] == ONE else [axis.terms[0][0] for axis in step[1]]
            ins.append(step[0])
            maps.append(tuple(maps[place][j] for j in kept) or ONE)
            steps.append("float32")
        b = BodyBuilder([dtype_of_value(integers), *steps])
        by = b.inputs[1] if steps else float(np.float32(step)) if isinstance(step, float) else 1.0
        q = b.inputs[0] if apart else quantized(b, b.inputs[0], by, 0, site.dtype)
        read = b.finish(dequantized(b, q, by, 0, dtype))

        name = "body" if isinstance(op, MapOp) else "epilogue"
        old = op.properties[name]
        assert isinstance(old, BodyAttr)
        first = 0
        lead: list[str] = []
        if isinstance(op, ContractOp):
            first = 2 if op.factors is None else op.factors.value.data
            lead = [op.operator().stats[0].dtype]
        types = [*lead, *(dtype_of_value(v) for v in ins[first:])]
        graph = BodyGraph()
        inputs = [graph.input(j, t) for j, t in enumerate(types)]
        at = place - first + len(lead)
        args = inputs[: len(inputs) - len(steps)]
        (args[at],) = graph.inline(read, [inputs[at], *inputs[len(args) :]])
        made, _ = graph.build(graph.inline(old.data, args), first=list(range(len(types))))
        new = type(op).create(
            operands=ins,
            result_types=[r.type for r in op.results],
            properties={
                **op.properties,
                "domain": DomainAttr(Domain(domain.dims, tuple(maps), domain.results)),
                name: BodyAttr(made),
            },
            attributes=op.attributes,
        )
        new.location = op.location
        replace_op(op, new)
        return new


def _with_step(
    ref: WeightRef, word: str, dtype: str, channels: tuple[int, ...], layers: int | None
) -> WeightRef:
    """The recipe with a step that quantises; where layers are stacked last, each before that, so
    that one layer can be had without the others."""

    def step(axes: Sequence[int]) -> str:
        return " ".join([word, dtype, *map(str, axes)])

    if layers is None:
        return ref.then(step(channels))
    if ref.recipe and ref.recipe[-1].split()[0] == "stack" and len(ref.recipe[-1].split()) == 1:
        return replace(ref, recipe=(*ref.recipe[:-1], step(channels), ref.recipe[-1]))
    made = ref.then(step((0, *(c + 1 for c in channels))))
    return made.then(f"reshape {layers} 1") if word == "steps" and not channels else made


def _blocked(domain: Domain, dim: int, size: int) -> Domain:
    """`domain` with a summed dimension cut into blocks: the block is a parallel dimension in its
    place, what is left of it comes last. The last block may reach past the end, where factors read
    zeros."""
    old = domain.dims[dim]
    names = {d.name for d in domain.dims}
    outer, inner = (f"{old.name}{i}" for i in range(2))
    while outer in names or inner in names:
        outer, inner = f"{outer}_", f"{inner}_"
    dims = list(domain.dims)
    dims[dim] = Dim(outer, -(-old.extent // size))
    dims.append(Dim(inner, size, DimKind.REDUCTION))
    assign = {d: AxisExpr(((d, 1),)) for d in range(len(domain.dims))}
    assign[dim] = AxisExpr(((dim, size), (len(domain.dims), 1)))
    return Domain(
        tuple(dims),
        tuple(substitute_map(m, assign) for m in domain.operands),
        tuple(substitute_map(m, assign) for m in domain.results),
    )

"""LSTM, GRU and RNN, unrolled: one product for the inputs of all steps, then two operations a step.

The sizes in comments: T steps, B sequences, I inputs, H hidden, G gates; D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.ir import SSAValue

from elk_ir.dialects.te.interface import accumulator
from elk_ir.numerics.scalars import BodyBuilder, Scalar
from elk_ir.passes.onnx_lowerings import moves
from elk_ir.passes.onnx_lowerings.axes import Domain, total
from elk_ir.passes.onnx_lowerings.context import (
    Context,
    Node,
    Unsupported,
    dtype_of_value,
    expect,
    lowers,
    shape_of,
)
from elk_ir.passes.onnx_lowerings.products import contract

MAX_STEPS = 1024
"""Steps (over all directions) that are unrolled: about three operations each."""

Activation = Callable[[BodyBuilder, Scalar], Scalar]
Names = tuple[str, ...]


def _softplus(b: BodyBuilder, x: Scalar) -> Scalar:
    # max(x, 0) + log(1 + exp(-|x|)) does not overflow.
    return b.apply("max", x, 0.0) + b.apply("log", b.apply("exp", -b.apply("abs", x)) + 1.0)


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation function of a recurrent operator, by its ONNX name (in any case). Its defaults
    are those of ONNX's operator of that name. Raises Unsupported for an unknown one."""

    def number(value: float | None, default: float) -> float:
        return default if value is None else value

    match name.lower():
        case "sigmoid" | "tanh" as op:
            return lambda b, x: b.apply(op, x)
        case "relu":
            return lambda b, x: b.apply("max", x, 0.0)
        case "affine":
            return lambda b, x: x * number(alpha, 1.0) + number(beta, 0.0)
        case "leakyrelu":
            slope = number(alpha, 0.01)
            return lambda b, x: b.apply("select", b.apply("lt", x, 0.0), x * slope, x)
        case "thresholdedrelu":
            limit = number(alpha, 1.0)
            return lambda b, x: b.apply("select", b.apply("gt", x, limit), x, 0.0)
        case "scaledtanh":
            return lambda b, x: b.apply("tanh", x * number(beta, 1.0)) * number(alpha, 1.0)
        case "hardsigmoid":
            slope, shift = number(alpha, 0.2), number(beta, 0.5)
            return lambda b, x: b.apply("max", b.apply("min", x * slope + shift, 1.0), 0.0)
        case "elu":
            factor = number(alpha, 1.0)
            return lambda b, x: b.apply(
                "select", b.apply("gt", x, 0.0), x, (b.apply("exp", x) - 1.0) * factor
            )
        case "softsign":
            return lambda b, x: x / (b.apply("abs", x) + 1.0)
        case "softplus":
            return _softplus
        case _:
            raise Unsupported(f"activation {name!r}")


@dataclass(frozen=True)
class Cell:
    """What a node's attributes say: extents, directions and their activations, options."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    batch_first: bool


_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_TAKES_ALPHA = frozenset(
    {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
)
_TAKES_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})


def cell_of(node: Node, gates: int, defaults: Names, hidden: int | None = None) -> Cell:
    """What a node says; `hidden` where it is not the last axis of R. Raises Unsupported."""
    batch_first = bool(_optional(node, "layout"))
    for position in (0, 2) if hidden is None else (0,):
        if len(shape_of(node.operand(position))) != 3:
            raise Unsupported(f"operand {position} has not 3 axes")
    first, second, inputs = shape_of(node.operand(0))
    steps, batch = (second, first) if batch_first else (first, second)
    hidden = shape_of(node.operand(2))[2] if hidden is None else hidden
    direction = node.attr("direction") or "forward"
    if direction not in _DIRECTIONS:
        raise Unsupported(f"direction {direction!r}")
    reverse = _DIRECTIONS[direction]
    if steps * len(reverse) > MAX_STEPS:
        raise Unsupported(f"{steps * len(reverse)} steps are more than are unrolled ({MAX_STEPS})")
    # The schema's own default is one for two directions.
    names = list(node.attr("activations") or defaults * len(reverse))
    names = names[: len(defaults) * len(reverse)]
    # Parameters are listed for those functions only that have them.
    alphas = list(node.attr("activation_alpha") or ())
    betas = list(node.attr("activation_beta") or ())
    found = [
        activation(
            name,
            alphas.pop(0) if alphas and name.lower() in _TAKES_ALPHA else None,
            betas.pop(0) if betas and name.lower() in _TAKES_BETA else None,
        )
        for name in names
    ]
    each = len(defaults)
    if len(found) != each * len(reverse):
        raise Unsupported(f"{len(found)} activations for {len(reverse)} directions")
    per_direction = tuple(tuple(found[i * each : (i + 1) * each]) for i in range(len(reverse)))
    clip = node.attr("clip")
    return Cell(
        steps, batch, inputs, hidden, gates, reverse, per_direction, clip or None, batch_first
    )


def _optional(node: Node, name: str) -> int:
    try:
        return int(node.attr(name) or 0)
    except KeyError:  # an older version of the operator
        return 0


# `step(cell activations, gate sums, state)` -> new state, as scalars; the first is the output.
Step = Callable[..., tuple[Scalar, ...]]


def _clipped(b: BodyBuilder, cell: Cell, x: Scalar) -> Scalar:
    if cell.clip is None:
        return x
    return b.apply("min", b.apply("max", x, -cell.clip), cell.clip)


def part_of(ctx: Context, value: SSAValue | None, direction: int) -> SSAValue | None:
    """One direction of an operand whose first axis is directions."""
    if value is None:
        return None
    shape = shape_of(value)
    return moves.reshape(ctx, moves.slice_axis(ctx, value, 0, direction, 1), shape[1:])


def _initial(ctx: Context, node: Node, position: int, cell: Cell, direction: int) -> SSAValue:
    """The state (B, H) in which a direction starts: given, or zeros."""
    given = node.get(position)
    if given is None:
        return moves.full(ctx, (cell.batch, cell.hidden), 0, node_dtype(node))
    if cell.batch_first:
        given = moves.transpose(ctx, given, [1, 0, 2])
    part = part_of(ctx, given, direction)
    assert part is not None
    return part


def node_dtype(node: Node) -> str:
    """Element type of a recurrent operator's data."""
    return dtype_of_value(node.operand(0))


def _product(
    ctx: Context, rows: SSAValue, weight: SSAValue, bias: SSAValue | None, extra: SSAValue | None
) -> SSAValue:
    """rows (N, K) by weight (M, K) transposed, plus a bias (M) and an addend (N, M), in the
    accumulator type."""
    (n, k), m = shape_of(rows), shape_of(weight)[0]
    domain = Domain()
    i, j, r = domain.add("n", n), domain.add("m", m), domain.reduction("k", k)
    more = [(v, index) for v, index in ((bias, (j,)), (extra, (i, j))) if v is not None]

    def after(b: BodyBuilder, value: Scalar, *addends: Scalar) -> Scalar:
        for x in addends:
            value = value + b.cast(x, value.dtype)
        return value

    wide = accumulator(dtype_of_value(rows))
    factors = [(rows, (i, r)), (weight, (j, r))]
    return contract(ctx, domain, factors, ((n, m), wide, (i, j)), after if more else None, more)


def _gate_rows(ctx: Context, value: SSAValue, cell: Cell, first: int, count: int) -> SSAValue:
    """Gates `first` to `first + count` of a tensor whose first axis is gates x H."""
    if (first, count) == (0, cell.gates):
        return value
    return moves.slice_axis(ctx, value, 0, first * cell.hidden, count * cell.hidden)


@dataclass(frozen=True)
class Direction:
    """The weights of one direction: W (G H, I), R (G H, H), their biases (G H), peepholes (3 H);
    the input's share of every gate, (T B, G H), is `given`."""

    cell: Cell
    activations: tuple[Activation, ...]
    recurrent: SSAValue
    recurrent_bias: SSAValue | None
    peepholes: SSAValue | None
    given: SSAValue


def _check_shapes(node: Node, cell: Cell) -> None:
    """Raises Unsupported for operands that do not fit the data: ONNX's inference lets them pass."""
    count, hidden, size = len(cell.reverse), cell.hidden, cell.gates * cell.hidden
    batch = (cell.batch, count) if cell.batch_first else (count, cell.batch)
    expected = {
        1: (count, size, cell.inputs),
        2: (count, size, hidden),
        3: (count, 2 * size),
        4: (cell.batch,),
        5: (*batch, hidden),
        6: (*batch, hidden),
        7: (count, 3 * hidden),
    }
    for position, shape in expected.items():
        expect(f"operand {position}", node.get(position), *shape)


def _direction(ctx: Context, node: Node, cell: Cell, index: int, x: SSAValue) -> Direction:
    _check_shapes(node, cell)
    w, r, bias = (part_of(ctx, node.get(i), index) for i in (1, 2, 3))
    assert w is not None and r is not None
    size = cell.gates * cell.hidden
    halves: list[SSAValue | None] = [None, None]
    if bias is not None:
        halves = [moves.slice_axis(ctx, bias, 0, i * size, size) for i in (0, 1)]
    peepholes = part_of(ctx, node.get(7), index)
    return Direction(
        cell,
        cell.activations[index],
        r,
        halves[1],
        peepholes,
        _product(ctx, x, w, halves[0], None),
    )


Advance = Callable[[Context, Direction, SSAValue, "list[SSAValue]"], "list[SSAValue]"]
Weights = Callable[[Context, Node, Cell, int, SSAValue], Direction]


def unroll(
    ctx: Context,
    node: Node,
    cell: Cell,
    states: Sequence[int],
    advance: Advance,
    direction: Weights = _direction,
) -> list[SSAValue | None]:
    """Y and the last states. `states` are the positions of the initial states' operands;
    `direction` gives a direction's weights and its inputs' share of the gates; `advance` yields the
    next states (B, H) from a step's gates (B, G H) and the states."""
    dtype, lengths = node_dtype(node), node.get(4)
    x = node.operand(0)
    if cell.batch_first:
        x = moves.transpose(ctx, x, [1, 0, 2])
    rows = cell.steps * cell.batch
    x = moves.reshape(ctx, x, [rows, cell.inputs])
    outputs: list[list[SSAValue]] = []
    finals: list[list[SSAValue]] = []
    for index, reverse in enumerate(cell.reverse):
        weights = direction(ctx, node, cell, index, x)
        current = [_initial(ctx, node, p, cell, index) for p in states]
        line: list[SSAValue] = [current[0]] * cell.steps
        for t in reversed(range(cell.steps)) if reverse else range(cell.steps):
            gates = moves.slice_axis(ctx, weights.given, 0, t * cell.batch, cell.batch)
            after = advance(ctx, weights, gates, current)
            if lengths is None:
                current, line[t] = after, after[0]
            else:
                *current, line[t] = _masked(ctx, lengths, t, current, after)
        outputs.append([moves.reshape(ctx, h, [1, 1, cell.batch, cell.hidden]) for h in line])
        finals.append(current)
    steps = [moves.concatenate(ctx, list(each), 1) for each in zip(*outputs, strict=True)]
    results: list[SSAValue | None] = [None]
    if node.wants(0):
        if not steps:
            results[0] = moves.full(ctx, node.shape(0), 0, dtype)
        else:
            y = moves.concatenate(ctx, steps, 0)
            results[0] = moves.transpose(ctx, y, [2, 0, 1, 3]) if cell.batch_first else y
    for i in range(len(states)):
        parts = [moves.reshape(ctx, f[i], [1, cell.batch, cell.hidden]) for f in finals]
        last = moves.concatenate(ctx, parts, 0)
        results.append(moves.transpose(ctx, last, [1, 0, 2]) if cell.batch_first else last)
    return results


def _masked(
    ctx: Context, lengths: SSAValue, t: int, before: list[SSAValue], after: list[SSAValue]
) -> list[SSAValue]:
    """States that stay as they were, and an output of zero, where a sequence has ended."""
    count = len(before)

    def fn(b: BodyBuilder, length: Scalar, *values: Scalar) -> tuple[Scalar, ...]:
        goes_on = b.apply("gt", length, t)
        old, new = values[:count], values[count:]
        kept = [b.apply("select", goes_on, n, o) for n, o in zip(new, old, strict=True)]
        return (*kept, b.apply("select", goes_on, new[0], 0.0))

    batch = shape_of(lengths)[0]
    column = moves.reshape(ctx, lengths, [batch, 1])
    return ctx.map(fn, column, *before, *after, shape=shape_of(after[0]))


def _gate_maps(cell: Cell, count: int) -> list[tuple]:
    """How the gates of a (B, count H) tensor are read over (B, H)."""
    domain = Domain()
    i, j = domain.add("b", cell.batch), domain.add("h", cell.hidden)
    return [(i, total(j, offset=g * cell.hidden)) for g in range(count)]


def pointwise(
    ctx: Context,
    direction: Direction,
    fn: Step,
    gates: Sequence[tuple[SSAValue, int]],
    states: Sequence[SSAValue],
    dtype: str,
    peepholes: int = 0,
) -> list[SSAValue]:
    """`fn` on the gates (each tensor with its number of gates), states and peepholes of a step,
    in the accumulator type."""
    cell = direction.cell
    domain = Domain()
    index = (domain.add("b", cell.batch), domain.add("h", cell.hidden))
    ins: list[SSAValue] = []
    maps: list[tuple] = []
    for value, count in gates:
        ins += [value] * count
        maps += _gate_maps(cell, count)
    ins += states
    maps += [index] * len(states)
    if direction.peepholes is not None:
        ins += [direction.peepholes] * peepholes
        maps += [(total(index[1], offset=p * cell.hidden),) for p in range(peepholes)]
    wide = accumulator(dtype)

    def body(b: BodyBuilder, *xs: Scalar) -> tuple[Scalar, ...]:
        return tuple(b.cast(y, dtype) for y in fn(b, *(b.cast(x, wide) for x in xs)))

    return ctx.map(body, *ins, shape=(cell.batch, cell.hidden), maps=maps)


def lstm_step(
    cell: Cell, coupled: bool, d: Direction, b: BodyBuilder, *xs: Scalar
) -> tuple[Scalar, ...]:
    """Hidden and cell state from the sums of the gates input, output, forget, cell, from the cell
    state and the peepholes."""
    i, o, f, g, c, *peepholes = xs
    inner, candidate, outer = d.activations
    if peepholes:
        i, f = i + peepholes[0] * c, f + peepholes[2] * c
    clip = partial(_clipped, b, cell)
    i = inner(b, clip(i))
    f = 1.0 - i if coupled else inner(b, clip(f))
    c = f * c + i * candidate(b, clip(g))
    if peepholes:
        o = o + peepholes[1] * c
    return inner(b, clip(o)) * outer(b, c), c


LSTM_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


@lowers("LSTM")
def _lstm(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Gates input, output, forget, cell; peepholes; the coupled form (input_forget)."""
    cell = cell_of(node, 4, LSTM_ACTIVATIONS)
    step, dtype = partial(lstm_step, cell, bool(node.attr("input_forget"))), node_dtype(node)

    def advance(
        ctx: Context, d: Direction, given: SSAValue, states: list[SSAValue]
    ) -> list[SSAValue]:
        gates = _product(ctx, states[0], d.recurrent, d.recurrent_bias, given)
        return pointwise(ctx, d, partial(step, d), [(gates, 4)], states[1:], dtype, 3)

    return unroll(ctx, node, cell, (5, 6), advance)


@lowers("GRU")
def _gru(ctx: Context, node: Node) -> list[SSAValue | None]:
    """Gates update, reset, hidden; the reset is applied before the recurrent product or after it
    (linear_before_reset)."""
    cell = cell_of(node, 3, ("Sigmoid", "Tanh"))
    after_product, dtype = bool(node.attr("linear_before_reset")), node_dtype(node)
    wide = accumulator(dtype)

    def whole(d: Direction, b: BodyBuilder, *xs: Scalar) -> tuple[Scalar, ...]:
        # Both shares of each gate apart: the reset scales the recurrent one only.
        z, r, n, rz, rr, rn, h = xs
        inner, candidate = d.activations
        clip = partial(_clipped, b, cell)
        z, r = inner(b, clip(z + rz)), inner(b, clip(r + rr))
        n = candidate(b, clip(n + r * rn))
        return ((1.0 - z) * n + z * h,)

    def first(d: Direction, b: BodyBuilder, *xs: Scalar) -> tuple[Scalar, ...]:
        z, r, h = xs
        inner = d.activations[0]
        z, r = (inner(b, _clipped(b, cell, v)) for v in (z, r))
        return z, r * h

    def second(d: Direction, b: BodyBuilder, *xs: Scalar) -> tuple[Scalar, ...]:
        n, z, h = xs
        n = d.activations[1](b, _clipped(b, cell, n))
        return ((1.0 - z) * n + z * h,)

    def advance(
        ctx: Context, d: Direction, given: SSAValue, states: list[SSAValue]
    ) -> list[SSAValue]:
        (h,) = states
        if after_product:
            recurrent = _product(ctx, h, d.recurrent, d.recurrent_bias, None)
            return pointwise(ctx, d, partial(whole, d), [(given, 3), (recurrent, 3)], [h], dtype)
        parts: list[SSAValue] = []
        for start, count in ((0, 2), (2, 1)):
            weight = _gate_rows(ctx, d.recurrent, cell, start, count)
            bias = d.recurrent_bias
            bias = None if bias is None else _gate_rows(ctx, bias, cell, start, count)
            share = moves.slice_axis(ctx, given, 1, start * cell.hidden, count * cell.hidden)
            if start == 0:
                gates = _product(ctx, h, weight, bias, share)
                z, reset = pointwise(ctx, d, partial(first, d), [(gates, 2)], [h], wide)
                parts = [z, ctx.cast(reset, dtype)]
            else:
                gate = _product(ctx, parts[1], weight, bias, share)
                return pointwise(ctx, d, partial(second, d), [(gate, 1)], [parts[0], h], dtype)
        return parts

    return unroll(ctx, node, cell, (5,), advance)


@lowers("RNN")
def _rnn(ctx: Context, node: Node) -> list[SSAValue | None]:
    """One gate."""
    cell = cell_of(node, 1, ("Tanh",))
    dtype = node_dtype(node)

    def step(d: Direction, b: BodyBuilder, x: Scalar) -> tuple[Scalar, ...]:
        return (d.activations[0](b, _clipped(b, cell, x)),)

    def advance(
        ctx: Context, d: Direction, given: SSAValue, states: list[SSAValue]
    ) -> list[SSAValue]:
        gates = _product(ctx, states[0], d.recurrent, d.recurrent_bias, given)
        return pointwise(ctx, d, partial(step, d), [(gates, 1)], [], dtype)

    return unroll(ctx, node, cell, (5,), advance)

"""Errors of dialects, passes and the ipu target that no compilation of a whole model reaches."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import Weights, context, lower, machine_of, parse, planned, program, random_array
from helpers import run_passes as run_pipeline
from test_broken_programs import PLANS
from test_ipu_refusals import changed, text
from xdsl.dialects.builtin import AffineMapAttr, ArrayAttr, ModuleOp
from xdsl.dialects.linalg.ops import GenericOp
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineDimExpr, AffineMap
from xdsl.parser import Parser
from xdsl.utils.exceptions import PassFailedException, VerifyException

from elk_ir.compiler import context as compiler_context
from elk_ir.compiler import run_passes
from elk_ir.dialects import northpole
from elk_ir.dialects.element_types import dense_from_array
from elk_ir.errors import ElkError, ModelError
from elk_ir.passes.convert_icca_to_ipu import ConvertIccaToIpuPass
from elk_ir.passes.convert_linalg_to_te import ConvertLinalgToTePass
from elk_ir.passes.te_quantize import quantize_module
from elk_ir.plan.layout import AxisLayout, Layout
from elk_ir.quant.scheme import parse_scheme
from elk_ir.targets.ipu.device_program import device_program
from elk_ir.targets.ipu.interpreter import Interpreter
from elk_ir.targets.ipu.machine import Sram, TrapError
from elk_ir.targets.ipu.poplar_cpp import emit_cpp
from elk_ir.targets.ipu.timeline import timeline_of
from elk_ir.targets.northpole.extract import network_of
from elk_ir.weight_source import WeightSource

T4 = "tensor<4xf32>"
TEN4 = f'%x = "test.op"() : () -> {T4}\n'
MAP = "{body = #te.body<(x0) {} -> (x0)>}"

INVALID = [
    (
        f"{TEN4}%y = icca.repeat 0 times 2 iter(%x) {{\n^bb0(%l: index, %a: {T4}):\n"
        f"te.yield %a : {T4}\n}} : ({T4}) -> {T4}",
        "the body of icca.repeat ends with icca.yield",
    ),
    (
        f"{TEN4}%y = te.repeat 2 iter(%x) {{\n^bb0(%l: index, %a: {T4}):\n"
        f"icca.yield %a : {T4}\n}} : ({T4}) -> {T4}",
        "the body of te.repeat ends with te.yield",
    ),
    (
        f"{TEN4}%y = te.map(%x) <(d = 4), [] -> [(d)]> {MAP} : ({T4}) -> {T4}",
        "the domain has 0 operand maps, the operation 1 operands",
    ),
    (
        f"{TEN4}%y = te.map(%x) <(d = 4), [(d)] -> []> {MAP} : ({T4}) -> {T4}",
        "the domain has 0 result maps, the operation 1 results",
    ),
    (
        '%x = "test.op"() : () -> tensor<8x2xf32>\n%q = te.quantize(%x)'
        " <(d = 8, e = 2 reduce), [(d, e)] -> [(d)]>"
        " {step = 0.5 : f64} : (tensor<8x2xf32>) -> tensor<8xi4>",
        "te.quantize has no reduction dimensions",
    ),
    (
        "onnx.Initializer dense<1.0> : tensor<f32> -> tensor<?xf32>",
        "the shape of an initializer is static",
    ),
    (
        'onnx.Initializer ["a", "b"] -> tensor<3x!onnx.string>',
        "a list of strings is the value of a string tensor",
    ),
    (
        'onnx.Initializer ["a", "b"] -> tensor<2xf32>',
        "a list of strings is the value of a string tensor",
    ),
    (
        '%a = "test.op"() : () -> tensor<4xi32>\n'
        "%y = linalg.tanh ins(%a : tensor<4xi32>) outs(%a : tensor<4xi32>) -> tensor<4xi32>",
        "linalg.tanh is not defined on these element types",
    ),
    (
        'northpole.block @b "b" in 4 out 4 phases 1 ways 1 {\n^bb0(%l: index, %x: tensor<4xi8>):\n'
        '%y = northpole.execute <name = "y", kind = "map", unit = "vector">(%x) {\n'
        "^bb1(%a: tensor<4xi8>):\n"
        f"%z = te.map(%a) <(d = 4), [(d)] -> [(d)]> {MAP} : (tensor<4xi8>) -> tensor<4xi8>\n"
        "} : (tensor<4xi8>) -> tensor<4xi8>\nnorthpole.yield %y : tensor<4xi8>\n}",
        "y has no plan",
    ),
]


@pytest.mark.parametrize(("ir", "message"), INVALID, ids=[m for _, m in INVALID])
def test_invalid_ir(ir: str, message: str) -> None:
    module = Parser(compiler_context(), ir).parse_module()
    with pytest.raises(VerifyException, match=re.escape(message)):
        module.verify()


def test_no_plan_on_the_host() -> None:
    (ir,) = (ir for ir, message in INVALID if message == "y has no plan")
    module = Parser(compiler_context(), ir).parse_module()
    (execute,) = (op for op in module.walk() if isinstance(op, northpole.ExecuteOp))
    with pytest.raises(VerifyException, match="y has no plan"):
        execute.partition()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ('[<"w" : tensor<?xf32>, "f", 0, 8, "">]', "weight 'w' must have a static shape"),
        ("[]", "a weight has at least one part"),
    ],
)
def test_invalid_weight(weight: str, message: str) -> None:
    with pytest.raises(VerifyException, match=re.escape(message)):
        Parser(context(), f"#te.weight<{weight}>").parse_attribute()


def test_strings_are_no_dense_attribute() -> None:
    with pytest.raises(KeyError, match="string"):
        dense_from_array(np.array(["a", "b"], dtype=object))


LINALG = [
    (
        "%c = arith.constant dense_resource<blob> : tensor<4xf32>\nfunc.return %c : tensor<4xf32>",
        "DenseResourceAttr is no constant whose elements are here",
    ),
    (
        '%s = "arith.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>\n'
        "%e = tensor.empty() : tensor<4xf32>\n"
        "%y = linalg.fill ins(%s : tensor<f32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>\n"
        "func.return %y : tensor<4xf32>",
        "the value it fills with is not a constant",
    ),
    (
        "%c = arith.constant 6 : index\n"
        "%y = tensor.extract_slice %x[%c] [4] [1] : tensor<8xf32> to tensor<4xf32>\n"
        "func.return %y : tensor<4xf32>",
        "elements 6 to 9 of an axis of 8",
    ),
    (
        'linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}'
        " ins(%x : tensor<8xf32>) {\n^bb0(%a: f32):\nlinalg.yield\n}\n"
        "%y = tensor.empty() : tensor<4xf32>\nfunc.return %y : tensor<4xf32>",
        "it has no result; hand in linalg on tensors",
    ),
    (
        "%y = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],"
        ' iterator_types = ["parallel"]}'
        " ins(%x : tensor<8xf32>) outs(%x : tensor<8xf32>) {\n^bb0(%a: f32, %o: f32):\n"
        "%i = arith.fptosi %a : f32 to i128\n%f = arith.sitofp %i : i128 to f32\n"
        "linalg.yield %f : f32\n} -> tensor<8xf32>\nfunc.return %y : tensor<8xf32>",
        "i128",
    ),
]


@pytest.mark.parametrize(("body", "message"), LINALG, ids=[m for _, m in LINALG])
def test_linalg_that_is_not_lowered(body: str, message: str) -> None:
    result = body.rsplit(" : ", 1)[1]
    head = f"func.func @main(%x: tensor<8xf32>, %z: tensor<2x2xf32>) -> {result} {{\n"
    module = Parser(context(), f"{head}{body}\n}}").parse_module()
    with pytest.raises(ElkError) as raised:
        run_passes(context(), module, [ConvertLinalgToTePass()], model="test")
    assert message in str(raised.value) + str(raised.value.details)


def test_product_of_loops() -> None:
    """xDSL refuses to parse such a map, so it is put together here."""
    module = Parser(
        context(),
        "func.func @main(%x: tensor<4xf32>, %z: tensor<2x2xf32>) -> tensor<2x2xf32> {\n"
        "%y = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0)>,"
        ' affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}'
        " ins(%x : tensor<4xf32>) outs(%z : tensor<2x2xf32>) {\n^bb0(%a: f32, %o: f32):\n"
        "linalg.yield %a : f32\n} -> tensor<2x2xf32>\nfunc.return %y : tensor<2x2xf32>\n}",
    ).parse_module()
    (generic,) = (op for op in module.walk() if isinstance(op, GenericOp))
    loops = AffineDimExpr(0), AffineDimExpr(1)
    product = AffineMap(2, 0, (AffineBinaryOpExpr(AffineBinaryOpKind.Mul, *loops),))
    maps = [AffineMapAttr(product), *generic.indexing_maps.data[1:]]
    generic.properties["indexing_maps"] = ArrayAttr(maps)
    with pytest.raises(PassFailedException, match=r"the index \(d0 \* d1\) is not a sum of mult"):
        ConvertLinalgToTePass().apply(context(), module)


H = {"h": random_array(np.random.default_rng(0), (6, 64), "float32")}
STORE = "ipu.store_start @o.result0 -> @y"
TRAPS = [
    ("ipu.fill @q.partial0", "ipu.fill @nothing", "no variable is called @nothing"),
    (STORE, f"%row = ipu.row 3\n{STORE}[%row]", "@y has no row 3"),
    (
        "ipu.copy_start @wq",
        "ipu.store_start @norm.result0 -> @y\nipu.copy_start @wq",
        "store to @y is out of range",
    ),
    (
        "ipu.copy <@q.landing0> -> <@q.execute0[_, 0]>",
        "ipu.copy <@q.landing0> -> <@q.preload1[0, _]>",
        "copy to @q.preload1: 24 elements for",
    ),
    (
        "ipu.copy_start @h -> @norm.preload0\n    ipu.copy_start @g -> @norm.preload1\n"
        "    ipu.copy_wait @norm.preload0\n",
        "ipu.copy_start @h -> @norm.preload0 axis 0 limit 3\n ipu.copy_start @g -> @norm.preload1\n"
        "    ipu.copy_wait @norm.preload0\n ipu.store_start @norm.preload0 -> @y\n",
        "store to @y reads bytes that were never written (core 0)",
    ),
    (
        "ipu.copy_start @h -> @norm.preload0\n    ipu.copy_start @g -> @norm.preload1\n"
        "    ipu.copy_wait @norm.preload0\n    ipu.copy_wait @norm.preload1\n",
        "ipu.copy_start @h -> @norm.preload0 axis 0 limit 3\n ipu.copy_start @g -> @norm.preload1\n"
        "ipu.copy_wait @norm.preload0\nipu.copy_wait @norm.preload1\n"
        "ipu.reshard @norm.preload0 -> @q.execute0\n",
        "reshard to @q.execute0 reads 768 bytes that were never written",
    ),
    ("@q.landing0 at 2280 bytes 96", "@q.landing0 at 2280 bytes 48", "96 bytes do not fit"),
    (
        'tensor<6x64xf32> <1 cores, [6, 64]> of "norm"\n  ipu.var @q.preload1',
        'tensor<6x32xf32> <1 cores, [6, 32]> of "norm"\n  ipu.var @q.preload1',
        "the variable holds",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), TRAPS, ids=[m for *_, m in TRAPS])
def test_traps(old: str, new: str, message: str) -> None:
    with pytest.raises(TrapError, match=re.escape(message)):
        machine_of(changed(old, new), Weights(), "early").run(H)


def test_inputs_of_the_machine() -> None:
    machine = machine_of(Parser(context(), text()).parse_module(), Weights())
    with pytest.raises(ElkError, match="input 'h' is missing"):
        machine.run({})
    with pytest.raises(ElkError, match=r"input 'h' is float32\[6, 63\], the program takes"):
        machine.run({"h": H["h"][:, 1:]})
    with pytest.raises(ElkError, match="output 'y' cannot take the place of input 'h'"):
        machine.carry("y", "h")


def test_a_machine_that_is_too_small() -> None:
    module = Parser(context(), text()).parse_module()
    with pytest.raises(TrapError, match="the program uses 16 cores, the chip has 4"):
        Interpreter(module, Weights(), cores=4, sram_bytes=65536)
    layout = Layout(4, (AxisLayout(4),))
    with pytest.raises(TrapError, match="4 cores, the chip has 2"):
        Sram(2, 64).declare("a", "", layout, "float32", 0, 64)


def no_program() -> ModuleOp:
    """The remotes, variables and codelets alone."""
    return Parser(context(), text()[: text().index("ipu.program")] + "}").parse_module()


def test_no_program() -> None:
    with pytest.raises(ElkError, match=r"the module has no ipu\.program"):
        machine_of(no_program(), Weights())
    with pytest.raises(ElkError, match=r"the module has no ipu\.program"):
        timeline_of(no_program())


def test_no_chip() -> None:
    with pytest.raises(ElkError, match=r"the module names no chip \(attribute icca\.chip\)"):
        timeline_of(changed("icca.chip =", "other ="))


STRANGE = ("ipu.fill @q.partial0", '"test.op"() : () -> ()\nipu.fill @q.partial0')


def test_strange_operation() -> None:
    with pytest.raises(ElkError, match=r"test\.op has no place in an ipu program"):
        emit_cpp(changed(*STRANGE))
    with pytest.raises(ElkError, match=r"test\.op has no place in an ipu program"):
        timeline_of(changed(*STRANGE))


def test_rows_out_of_a_state_that_grows() -> None:
    start = "ipu.copy_start @h -> @norm.preload0"
    with pytest.raises(ElkError, match="@h: rows are picked out of a state that grows"):
        emit_cpp(changed(start, f"{start} rows @g axis 0"))


def test_a_scalar_operation_without_cpp() -> None:
    module = planned(
        'func.func @main(%x: tensor<4xi32> {onnx.name = "x"})'
        ' -> (tensor<4xi32> {onnx.name = "y"}) {\n%y = te.map(%x) <(d = 4), [(d)] -> [(d)]>'
        " {body = #te.body<(x0) {t0 = exp(x0)} -> (t0)>} : (tensor<4xi32>) -> tensor<4xi32>\n"
        "func.return %y : tensor<4xi32>\n}"
    )
    with pytest.raises(ElkError, match=r"no C\+\+ for the scalar operation exp of int32"):
        emit_cpp(lower(module))


def icca(old: str, new: str) -> ModuleOp:
    """The allocated icca program, with the first `old` written otherwise."""
    spelled = str(run_pipeline(planned(program("slice"), PLANS), "icca-allocate"))
    assert old in spelled
    return parse(spelled.replace(old, new, 1))


def test_icca_to_ipu() -> None:
    g = "%g = icca.preload @g at 3072"
    with pytest.raises(PassFailedException, match="no tensor in HBM is called @nothing"):
        ConvertIccaToIpuPass().apply(context(), icca(g, g.replace("@g", "@nothing")))
    unused = f"%unused = icca.preload @g at 0 : !icca.handle<tensor<64xf32>>\n{g}"
    with pytest.raises(PassFailedException, match="a preload has no execute that consumes it"):
        ConvertIccaToIpuPass().apply(context(), icca(g, unused))


LOOP = """
func.func @main(%h: tensor<4x4xf32> {onnx.name = "h"}) -> (tensor<4x4xf32> {onnx.name = "y"}) {
  %a = te.map(%h) DOMAIN loc("a")
  %y = te.repeat 2 iter(%a) {
  ^bb0(%l: index, %x: tensor<4x4xf32>):
    %b = te.map(%x) DOMAIN loc("b")
    te.yield %b : tensor<4x4xf32>
  } : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}""".replace(
    "DOMAIN",
    "<(m = 4, n = 4), [(m, n)] -> [(m, n)]> {body = #te.body<(x0) {t0 = neg(x0)} -> (t0)>}"
    " : (tensor<4x4xf32>) -> tensor<4x4xf32>",
)


def test_a_loop_that_changes_a_layout() -> None:
    """The copy in front of the loop, which brings the value into the layout, is left out."""
    plans = 'icca-set-plan{op=a grid="m=2,n=1"},icca-set-plan{op=b grid="m=1,n=4"}'
    spelled = str(run_pipeline(planned(LOOP, plans), "icca-allocate"))
    changed, count = re.subn(r"iter\(%\w+\)", "iter(%a)", spelled)
    assert count == 1
    module = parse(changed)
    with pytest.raises(PassFailedException, match="carries a in one layout and yields it in anoth"):
        ConvertIccaToIpuPass().apply(context(), module)


PRODUCT = """
te.global weight @w : tensor<8x8xf32> = dense<0.5> : tensor<8x8xf32>
func.func @main(%x: tensor<2x8xf32> {onnx.name = "x"}) -> (tensor<2x8xf32> {onnx.name = "y"}) {
  %w = te.load @w : tensor<8x8xf32>
  %y = te.contract(%x, %w) PRODUCT
  %z = te.contract(%y, %w) PRODUCT
  func.return %z : tensor<2x8xf32>
}""".replace(
    "PRODUCT",
    "<(m = 2, n = 8, k = 8 reduce), [(m, k), (k, n)] -> [(m, n)]>"
    " : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>",
)


def test_calibration_of_another_model() -> None:
    other = PRODUCT.replace("  %z = te.contract(%y", "  %q = te.contract(%y")
    other = other.replace("return %z", "return %y").replace("2x8xf32", "4x8xf32")
    other = parse(re.sub(r"  %q = .*\n", "", other).replace("m = 2", "m = 4"))
    inputs = {"x": np.ones((4, 8), np.float32)}
    with pytest.raises(ElkError, match="at the shapes of the calibration inputs the model has oth"):
        quantize_module(
            parse(PRODUCT), parse_scheme("w8a8"), inputs, WeightSource(None).load, other
        )


def test_a_device_program_has_offsets() -> None:
    with pytest.raises(ElkError, match=r"norm: \S+ has no offset"):
        device_program(planned(program("slice"), PLANS))


def test_what_no_northpole_core_runs() -> None:
    module = parse(f"func.func @main() -> {T4} {{\n{TEN4}func.return %x : {T4}\n}}")
    with pytest.raises(ModelError, match=r"no unit of a NorthPole core runs test\.op"):
        network_of(module)

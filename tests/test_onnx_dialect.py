"""The onnx dialect: generated from ONNX's schemas, made on demand, and weights as attributes."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    Builtin,
    DenseIntOrFPElementsAttr,
    FusedLoc,
    NoneAttr,
    TensorType,
    UnknownLoc,
    f32,
    i64,
)
from xdsl.dialects.test import TestOp
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from elk_ir.dialects import onnx
from elk_ir.dialects.element_types import array_from_dense, dense_from_array, element_type_attr
from elk_ir.dialects.location import (
    copy_location,
    fuse_locations,
    node_name,
    node_names,
    set_node_name,
)
from elk_ir.dialects.te import TE
from elk_ir.dialects.weight import WeightAttr
from elk_ir.frontend.element_types import ELEMENT_TYPES, numpy_dtype
from elk_ir.frontend.weights import WeightPart, WeightRef


def parse_attribute(text: str):
    ctx = Context()
    for dialect in (Builtin, TE, onnx.ONNX):
        ctx.load_dialect(dialect)
    return Parser(ctx, text).parse_attribute()


def test_every_schema_has_an_operation() -> None:
    from onnx.defs import get_all_schemas

    names = {f"onnx.{s.name}" for s in get_all_schemas() if s.domain == ""}
    assert names <= {op.name for op in onnx.ONNX.operations}


def test_signatures_follow_the_schemas() -> None:
    from onnx.defs import get_all_schemas

    for schema in get_all_schemas():
        if schema.domain:
            continue
        signature = onnx.op_classes()[schema.name].SIGNATURE
        assert [f.name for f in signature.operands] == [p.name for p in schema.inputs]
        assert [f.name for f in signature.results] == [p.name for p in schema.outputs]
        assert signature.attributes | set(signature.regions) == set(schema.attributes)


def test_importing_the_dialect_does_not_import_onnx() -> None:
    code = "import elk_ir.dialects.onnx, sys; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_operands_and_defaults() -> None:
    x = create_ssa_value(TensorType(f32, [2, 4]))
    high = create_ssa_value(TensorType(f32, []))
    clip = onnx.op_classes()["Clip"].make([x, None, high], [x.type])
    clip.verify()
    assert clip.onnx_operands == (x, None, high)
    assert clip.onnx_operands[1] is None
    relu = onnx.op_classes()["LeakyRelu"].make([x], [x.type])
    assert relu.attr("alpha") == pytest.approx(0.01)
    with pytest.raises(KeyError, match="no attribute 'beta'"):
        relu.attr("beta")
    with pytest.raises(ValueError, match="B is missing"):
        onnx.op_classes()["Add"].make([x], [x.type])
    with pytest.raises(ValueError, match="one of the variadic inputs is absent"):
        onnx.op_classes()["Concat"].make([x, None], [x.type])
    with pytest.raises(ValueError, match="at most 1"):
        onnx.op_classes()["Relu"].make([x, x], [x.type])


def test_types_are_checked_against_the_schema() -> None:
    x = create_ssa_value(TensorType(f32, [4]))
    n = create_ssa_value(TensorType(i64, [4]))
    with pytest.raises(VerifyException, match="T is f32"):
        onnx.op_classes()["Mul"].make([x, n], [x.type]).verify()
    with pytest.raises(VerifyException, match="cannot have type"):
        onnx.op_classes()["Sqrt"].make([n], [n.type]).verify()


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'NoSuchOp'"):
        _ = onnx.NoSuchOp
    x = create_ssa_value(TensorType(f32, [4]))
    with pytest.raises(KeyError, match="Relu has no attribute 'axis'"):
        onnx.op_classes()["Relu"].make([x], [x.type]).attr("axis")
    assert onnx.MatMulOp.name == "onnx.MatMul"


DENSE = [
    (t.name, values)
    for t in ELEMENT_TYPES
    for values in ([1, 0, 1, 1], [1, 1, 1, 1])
    # Strings are no numbers, and the type of exponents has no zero.
    if t.name != "string" and not (t.name == "f8E8M0FNU" and 0 in values)
]


@pytest.mark.parametrize(("name", "values"), DENSE)
def test_dense_round_trip(name: str, values: list[int]) -> None:
    array = np.array(values, np.float32).astype(numpy_dtype(name)).reshape(2, 2)
    attr = dense_from_array(array)
    again = parse_attribute(str(attr))
    assert isinstance(again, DenseIntOrFPElementsAttr)
    assert again == attr
    assert attr.get_element_type() == element_type_attr(name)
    assert np.array_equal(array_from_dense(again).astype(np.complex64), array.astype(np.complex64))


def test_negative_and_narrow_numbers_keep_their_value() -> None:
    for array in (
        np.array([-8, 7], ml_dtypes.int4),
        np.array([0, 15], ml_dtypes.uint4),
        np.array([-1, 2**62], np.int64),
        np.array([True, False]),
    ):
        assert np.array_equal(array_from_dense(dense_from_array(array)), array)


@pytest.mark.parametrize(
    "values",
    [[-np.inf, 0.0], [np.nan, 1.0], [16777217.0, 2.0], [-np.inf], [1e-45, 3.4e38], [0.1, 1 / 3]],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_without_a_short_form_survive_printing(values: list[float], dtype: type) -> None:
    op = onnx.InitializerOp(dense_from_array(np.array(values, dtype)))
    ctx = Context()
    for dialect in (Builtin, TE, onnx.ONNX):
        ctx.load_dialect(dialect)
    (again,) = Parser(ctx, str(op)).parse_module().ops
    assert isinstance(again, onnx.InitializerOp)
    assert again.value == op.value


def test_weight_attribute_is_a_reference() -> None:
    part = WeightPart("a b.bin", 4096, 64, "", "f16", (4, 8), 'w "quoted"')
    ref = WeightRef((part, part), ("transpose 1 0", "stack", "cast f32"))
    attr = WeightAttr.get(ref)
    assert attr.to_ref() == ref
    assert parse_attribute(str(attr)) == attr
    assert attr.get_type() == TensorType(f32, [2, 8, 4])
    with pytest.raises(VerifyException, match="transpose 0"):
        WeightAttr.get(ref.then("transpose 0"))


def test_locations_follow_operations() -> None:
    a, b, c = (TestOp.create() for _ in range(3))
    assert node_name(a) == "test.op"
    set_node_name(a, "/layer/MatMul", "m.onnx", 7)
    set_node_name(b, "/layer/Add")
    assert str(a.location) == 'loc("/layer/MatMul"("m.onnx":7:0))'
    copy_location(a, c)
    assert node_name(c) == "/layer/MatMul"
    fuse_locations([a, b, a], c)
    assert node_names(c) == ("/layer/MatMul", "/layer/Add")
    fuse_locations([c, b], c)
    assert isinstance(c.location, FusedLoc)
    assert node_names(c) == ("/layer/MatMul", "/layer/Add")
    fuse_locations([TestOp.create()], b)
    assert node_name(b) == "/layer/Add"
    assert isinstance(TestOp.create().location, UnknownLoc)
    assert isinstance(c.location.metadata, NoneAttr)
    assert isinstance(c.location.locations, ArrayAttr)

"""IR of other compilers, or of a person, as a model: linalg on tensors, or te."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.utils.exceptions import DiagnosticException, ParseError

from elk_ir.errors import ModelError

if TYPE_CHECKING:
    from elk_ir.compiler import Source

_COMPILED = frozenset({"icca", "ipu", "northpole"})


def import_ir(model: str | Path | ModuleOp) -> tuple[ModuleOp, Source]:
    """A module to be compiled (a copy, if it is given as one) and where it came from.

    Its function `main`, or its only one, is the model, and is all that is kept; arguments and
    results that have no `onnx.name` are called as their values are, or `in0`, `out0` and so on.
    Raises ModelError for text that does not parse, for a module without such a function, and for
    one that is compiled.
    """
    from elk_ir.compiler import Source

    if isinstance(model, ModuleOp):
        module, source = model.clone(), Source("module", None, {})
    else:
        path = Path(model)
        module, source = _read(path), Source(path.name, path.parent, {})
    compiled = {op.name.partition(".")[0] for op in module.walk()} & _COMPILED
    if compiled:
        raise ModelError(
            f"this module is at the level of {min(compiled)}: it is compiled already",
            where=source.name,
            hint="elk-opt runs single passes on it",
        )
    function = main_function(module, source.name)
    name_signature(function)
    function.properties["sym_name"] = StringAttr("main")
    for op in list(module.body.block.ops):
        if isinstance(op, FuncOp) and op is not function:
            module.body.block.erase_op(op)
    return module, source


def main_function(module: ModuleOp, where: str) -> FuncOp:
    """The function that is the model. Raises ModelError if that is not clear."""
    functions = [
        op for op in module.body.block.ops if isinstance(op, FuncOp) and not op.is_declaration
    ]
    named = [f for f in functions if f.sym_name.data == "main"]
    if len(functions) != 1 and len(named) != 1:
        raise ModelError(
            f"the module has {len(functions)} functions, and none is called main", where=where
        )
    return named[0] if named else functions[0]


def name_signature(function: FuncOp) -> None:
    """Give every argument and result that has no `onnx.name` one."""
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    hints = [a.name_hint or f"in{a.index}" for a in function.body.block.args]
    taken = {n for attrs in (function.arg_attrs, function.res_attrs) for n in _names(attrs)}
    function.arg_attrs = _named(function.arg_attrs, hints, len(inputs), taken)
    results = [f"out{i}" for i in range(len(outputs))]
    function.res_attrs = _named(function.res_attrs, results, len(outputs), taken)


def _names(attrs: ArrayAttr[Attribute] | None) -> list[str]:
    found = [_name(e) for e in (attrs.data if attrs is not None else ())]
    return [n for n in found if n is not None]


def _name(entry: Attribute) -> str | None:
    named = entry.data.get("onnx.name") if isinstance(entry, DictionaryAttr) else None
    return named.data if isinstance(named, StringAttr) else None


def _named(
    attrs: ArrayAttr[DictionaryAttr] | None, names: list[str], count: int, taken: set[str]
) -> ArrayAttr[DictionaryAttr]:
    given = attrs.data if attrs is not None else (DictionaryAttr({}),) * count
    entries: list[DictionaryAttr] = []
    for entry, name in zip(given, names, strict=True):
        if _name(entry) is None:
            unique, i = name, 1
            while unique in taken:
                unique, i = f"{name}_{i}", i + 1
            taken.add(unique)
            entry = DictionaryAttr({**entry.data, "onnx.name": StringAttr(unique)})
        entries.append(entry)
    return ArrayAttr(entries)


def _read(path: Path) -> ModuleOp:
    from elk_ir.compiler import context
    from elk_ir.tools.opt_input import LocatedParser

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError((error.strerror or str(error)).lower(), where=str(path)) from None
    except UnicodeDecodeError:
        raise ModelError("not UTF-8 text", where=str(path)) from None
    try:
        module = LocatedParser(context(), text, path.name).parse_module()
        module.verify()
    except ParseError as error:
        message = error.msg.strip().split("\n")[0]
        raise ModelError(message, where=str(error.span.get_location())) from None
    except DiagnosticException as error:
        raise ModelError(str(error).split("\n")[0], where=str(path)) from None
    return module

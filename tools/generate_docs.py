"""`make docs`: a page for each dialect and each pass, from the code, into docs/reference/.

python -m elk_ir.tools.generate_docs [--check]    (--check: only say which pages are not current)
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xdsl.ir import Dialect, ParametrizedAttribute
from xdsl.irdl import (
    AllOf,
    AnyAttr,
    AnyOf,
    AttrConstraint,
    BaseAttr,
    EqAttrConstraint,
    OptionalDef,
    ParamAttrConstraint,
    VarConstraint,
    VariadicDef,
)
from xdsl.passes import ModulePass, get_pass_option_infos

from elk_ir.pipelines import PIPELINES
from elk_ir.universe import DIALECTS, PASSES, UPSTREAM, resolve

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("docs") / "reference"
_NOTE = "<!-- Written by `make docs` from the code; changes here are lost. -->\n\n"
_SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
_HAND_WRITTEN = {"te": "te.md", "icca": "icca.md", "ipu": "ipu.md"}


def pages() -> dict[str, str]:
    """The text of every page, by its path below docs/reference/."""
    found: dict[str, str] = {}
    dialects = {name: resolve(path) for name, path in (DIALECTS | UPSTREAM).items()}
    passes = {name: resolve(path) for name, path in PASSES.items()}
    for name, dialect in dialects.items():
        found[f"dialects/{name}.md"] = _NOTE + dialect_page(dialect)
    for name, cls in passes.items():
        found[f"passes/{name}.md"] = _NOTE + pass_page(cls)
    found["README.md"] = _NOTE + index(dialects, passes)
    return found


def index(dialects: Mapping[str, Dialect], passes: Mapping[str, type[ModulePass]]) -> str:
    """The list of all pages."""
    lines = ["# Reference", "", "A page for each dialect and each pass, made from the code.", ""]
    lines += ["| dialect | operations | attributes and types |", "|---|---|---|"]
    for name, dialect in sorted(dialects.items()):
        operations = sum(map(_is_ours, dialect.operations))
        counts = f"{operations} | {sum(map(_is_ours, dialect.attributes))}"
        lines.append(f"| [{name}](dialects/{name}.md) | {counts} |")
    lines += ["", "| pass | what it does |", "|---|---|"]
    for name, cls in sorted(passes.items()):
        lines.append(f"| [{name}](passes/{name}.md) | {_cell(_paragraphs(cls)[0])} |")
    lines += ["", "| pipeline | passes |", "|---|---|"]
    lines += [f"| `{name}` | `{text}` |" for name, text in sorted(PIPELINES.items())]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------- passes


def pass_page(cls: type[ModulePass]) -> str:
    """What a pass does, its options, its file and its tests."""
    lines = [f"# `{cls.name}`", "", *_docs(cls), ""]
    options = get_pass_option_infos(cls)
    if options:
        lines += ["## Options", "", "| option | type | default |", "|---|---|---|"]
        for info in options:
            default = "required" if info.default_value is None else f"`{info.default_value}`"
            optional = "None" in str(info.expected_type)
            default = "none" if optional and info.default_value is None else default
            name = info.name.replace("_", "-")
            kind = str(info.expected_type).strip("'")
            lines.append(f"| `{name}` | {_cell(kind)} | {default} |")
        lines.append("")
    source = _source(cls)
    lines += ["## Where", "", f"- code: [`{source}`](../../../{source})"]
    for test in _lit_tests(cls.name):
        lines.append(f"- test: [`{test}`](../../../{test})")
    used = [name for name, text in sorted(PIPELINES.items()) if _names(text, cls.name)]
    lines += [f"- part of the pipeline `{name}`" for name in used]
    return "\n".join(lines) + "\n"


def _lit_tests(name: str) -> list[str]:
    """The lit tests named after a pass."""
    stem = name.replace("-", "_")
    folder = ROOT / "lit_tests" / "passes"
    own = [p for p in folder.glob("*.mlir") if p.stem == stem or p.stem.startswith(f"{stem}_")]
    return sorted(p.relative_to(ROOT).as_posix() for p in own)


def _names(pipeline: str, name: str) -> bool:
    return name in re.sub(r"\{[^}]*\}", "", pipeline).split(",")


# ---------------------------------------------------------------------- dialects


def dialect_page(dialect: Dialect) -> str:
    """The operations and attributes of a dialect."""
    lines = [f"# The `{dialect.name}` dialect", ""]
    if dialect.name in _HAND_WRITTEN:
        page = f"../../dialects/{_HAND_WRITTEN[dialect.name]}"
        lines += [f"What it means as a whole: [dialects/{dialect.name}]({page}).", ""]
    ours = [d for d in (*dialect.operations, *dialect.attributes) if _is_ours(d)]
    if dialect.name in UPSTREAM:
        lines += ["Upstream's, with these operations that xDSL does not have:", ""]
    operations = sorted((op for op in dialect.operations if op in ours), key=lambda op: op.name)
    if dialect.name == "onnx":
        lines += _onnx(operations)
    else:
        lines += ["## Operations", ""]
        for op in operations:
            lines += [*operation(op), ""]
    attributes = sorted((a for a in dialect.attributes if a in ours), key=lambda a: a.name)
    if attributes:
        lines += ["## Attributes and types", ""]
        for attribute in attributes:
            lines += [*_attribute(attribute), ""]
    return "\n".join(lines).rstrip() + "\n"


def _is_ours(definition: type[Any]) -> bool:
    return definition.__module__.startswith("elk_ir.")


def operation(op: type[Any]) -> list[str]:
    """An operation: what it says of itself, its operands, results and properties, its syntax."""
    definition = op.get_irdl_definition()
    lines = [f"### `{op.name}`", "", *_docs(op)]
    rows = [
        *(("operand", n, _arity(d), _text(d.constr)) for n, d in definition.operands),
        *(
            ("property", n, _optional(d), _text(d.constr))
            for n, d in definition.properties.items()
            if n not in _SEGMENTS
        ),
        *(
            ("attribute", n, _optional(d), _text(d.constr))
            for n, d in definition.attributes.items()
        ),
        *(("region", n, _arity(d), "") for n, d in definition.regions),
        *(("result", n, _arity(d), _text(d.constr)) for n, d in definition.results),
    ]
    if rows:
        lines += ["", "| | name | | type |", "|---|---|---|---|"]
        lines += [f"| {k} | `{n}` | {a} | {_cell(t)} |" for k, n, a, t in rows]
    if definition.assembly_format is not None:
        lines += ["", "```text", f"{op.name} {definition.assembly_format}", "```"]
    return lines


def _onnx(operations: Sequence[type[Any]]) -> list[str]:
    """The operators of ONNX are generated from its schemas: a table says enough."""
    generated = [op for op in operations if hasattr(op, "SIGNATURE")]
    others = [op for op in operations if not hasattr(op, "SIGNATURE")]
    lines = ["## Operations", ""]
    for op in others:
        lines += [*operation(op), ""]
    lines += [
        "## Operators of the standard",
        "",
        f"{len(generated)} operations whose operands and attributes come from ONNX's own schemas:",
        "",
    ]
    return [*lines, ", ".join(f"`{op.name}`" for op in generated) + ".", ""]


def _attribute(attribute: type[Any]) -> list[str]:
    lines = [f"### `{attribute.name}`", "", *_docs(attribute)]
    if issubclass(attribute, ParametrizedAttribute):
        parameters = attribute.get_irdl_definition().parameters
        if parameters:
            lines += ["", "| parameter | type |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(_text(p.constr))} |" for name, p in parameters]
    return lines


def _arity(definition: object) -> str:
    if isinstance(definition, OptionalDef):
        return "optional"
    return "any number" if isinstance(definition, VariadicDef) else ""


def _optional(definition: object) -> str:
    return "optional" if isinstance(definition, OptionalDef) else ""


def _text(constraint: AttrConstraint | Any) -> str:
    """A constraint in a few words."""
    match constraint:
        case AnyAttr():
            return "any"
        case BaseAttr():
            return f"`{_attr_name(constraint.attr)}`"
        case ParamAttrConstraint():
            return f"`{_attr_name(constraint.base_attr)}`"
        case EqAttrConstraint():
            return f"`{constraint.attr}`"
        case VarConstraint():
            return _text(constraint.constraint)
        case AnyOf():
            return " or ".join(dict.fromkeys(_text(c) for c in constraint.attr_constrs))
        case AllOf():
            return _text(constraint.attr_constrs[0])
        case _:
            inner = getattr(constraint, "constr", None) or getattr(constraint, "constraint", None)
            return _text(inner) if inner is not None else ""


def _attr_name(cls: type[Any]) -> str:
    return getattr(cls, "name", cls.__name__)


# ---------------------------------------------------------------------- text


def _paragraphs(cls: type[Any]) -> list[str]:
    """The paragraphs of a class's own docstring; that of its module where it has none."""
    text = cls.__dict__.get("__doc__") or ""
    if not text or re.match(rf"{cls.__name__}\(", text):  # a dataclass writes its signature
        text = inspect.getmodule(cls).__doc__ or "" if inspect.getmodule(cls) else ""
    return inspect.cleandoc(text).split("\n\n") if text else [""]


def _docs(cls: type[Any]) -> list[str]:
    """A docstring as Markdown: what is indented is code."""
    lines: list[str] = []
    for paragraph in _paragraphs(cls):
        rows = paragraph.split("\n")
        code = all(r.startswith("    ") or not r for r in rows) or rows[0].startswith("%")
        lines += [
            "",
            *(["```mlir", *inspect.cleandoc(paragraph).split("\n"), "```"] if code else rows),
        ]
    return lines[1:]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _source(cls: type[Any]) -> str:
    path = Path(inspect.getfile(cls)).resolve().relative_to(ROOT)
    return path.as_posix()


# ---------------------------------------------------------------------- files


def stale(written: Mapping[str, str], folder: Path) -> list[str]:
    """The pages in `folder` that differ from `written`, lack, or have no source any more."""
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*.md")}
    different = [
        name
        for name, text in written.items()
        if name not in there or (folder / name).read_text(encoding="utf-8") != text
    ]
    return sorted({*different, *(there - written.keys())})


def write(names: Iterable[str], written: Mapping[str, str], folder: Path) -> None:
    """Bring pages up to date; those without a source are removed."""
    for name in names:
        path = folder / name
        if name not in written:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written[name], encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or (`--check`) name those that are not current; 1 if there are any."""
    parser = argparse.ArgumentParser(description="A page for each dialect and pass, from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if any is stale")
    args = parser.parse_args(argv)
    written, folder = pages(), ROOT / FOLDER
    names = stale(written, folder)
    if args.check:
        for name in names:
            print(f"{FOLDER / name} is not current: run `make docs`", file=sys.stderr)
        return int(bool(names))
    write(names, written, folder)
    print(f"{len(names)} of {len(written)} pages written to {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

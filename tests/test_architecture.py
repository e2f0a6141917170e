"""What docs/architecture.md promises of the structure of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from elk_ir.compiler import context

ROOT = Path(__file__).parent.parent
FREE_OF_IR = ("plan", "cost", "memory", "schedule", "sim", "northpole")
OWN_DIALECTS = ("te", "icca", "ipu", "northpole")
BLOCKED = """
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xdsl", "onnx"):
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_algorithms_import_neither_xdsl_nor_onnx() -> None:
    """Each in one process in which both can't be imported."""
    files = [f for d in FREE_OF_IR for f in sorted((ROOT / "elk_ir" / d).rglob("*.py"))]
    files += [ROOT / "elk_ir" / "numerics" / f"{n}.py" for n in ("body", "kernels", "compiled")]
    names = [
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for f in files
    ]
    assert len(names) > 60
    command = [sys.executable, "-c", BLOCKED, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_module_says_what_it_is_for() -> None:
    """A docstring at the top; and no file that has grown beyond reading."""
    files = [f for d in ("elk_ir", "dialects", "passes", "targets", "tools") for f in modules(d)]
    assert len(files) > 200
    for file in files:
        text = file.read_text()
        assert not text.strip() or text.lstrip().startswith('"""'), f"{file.name}: no docstring"
        assert text.count("\n") <= 620, f"{file.name}: {text.count(chr(10))} lines"


def test_a_lit_test_names_every_operation_and_attribute() -> None:
    """Of our own dialects: attributes by their full names, as `#te.domain<` or `#te<combiner`."""
    folder = ROOT / "lit_tests"
    text = "".join(p.read_text(errors="replace") for p in folder.rglob("*.mlir"))
    known = context()
    for dialect in OWN_DIALECTS:
        known.load_registered_dialect(dialect)
    missing: list[str] = []
    for dialect in known.loaded_dialects:
        if dialect.name in OWN_DIALECTS:
            missing += [op.name for op in dialect.operations if op.name not in text]
            for attr in dialect.attributes:
                name = attr.name.removeprefix(f"{dialect.name}.")
                if not re.search(rf"[#!]{dialect.name}[.<]{name}\b", text):
                    missing.append(attr.name)
    assert not missing


def modules(folder: str) -> list[Path]:
    """The modules below a folder, links not followed."""
    found = (ROOT / folder).rglob("*.py")
    links = [p for p in (ROOT / folder).iterdir() if p.is_symlink()]
    return [f for f in found if not any(f.is_relative_to(link) for link in links)]

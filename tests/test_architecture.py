"""What docs/architecture.md promises of the structure of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FREE_OF_IR = ("plan", "cost", "memory", "schedule", "sim", "northpole")
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


def modules(folder: str) -> list[Path]:
    """The modules below a folder, links not followed."""
    found = (ROOT / folder).rglob("*.py")
    links = [p for p in (ROOT / folder).iterdir() if p.is_symlink()]
    return [f for f in found if not any(f.is_relative_to(link) for link in links)]

"""The documentation holds: the tutorial's snippets, the generated pages, links, examples."""

from __future__ import annotations

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from elk_ir.tools import generate_docs

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def matches(expected: str, printed: str) -> bool:
    """Whether text is as expected, `…` standing for any text, alone on its line for any lines."""
    parts: list[str] = []
    for line in expected.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split("…"))) + "\n")
    return re.fullmatch("".join(parts), printed) is not None


def test_matching_can_fail() -> None:
    assert matches("a …\n…\nz", "a b\nc\nd\nz\n")
    assert not matches("a …\nz", "a b\nc\nz\n")
    assert not matches("a", "b\n")


def test_tutorial() -> None:
    """Every Python block runs in the namespace of those before it and prints the block below."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert sum(kind == "python" for kind, _ in blocks) >= 8
    namespace: dict[str, object] = {}
    printed = ""
    for kind, body in blocks:
        if kind == "python":
            assert printed == "", f"printed, but not shown:\n{printed}"
            stream = io.StringIO()
            with redirect_stdout(stream):
                exec(compile(body, "docs/tutorial.md", "exec"), namespace)
            printed = stream.getvalue()
        else:
            assert kind == "text", f"a block of kind {kind}"
            assert matches(body, printed), f"expected:\n{body}\nprinted:\n{printed}"
            printed = ""
    assert printed == ""


def test_generated_pages_are_current() -> None:
    stale = generate_docs.stale(generate_docs.pages(), ROOT / generate_docs.FOLDER)
    assert not stale, f"run `make docs`: {', '.join(stale)}"


def test_stale_pages_are_seen(tmp_path: Path) -> None:
    pages = {"a.md": "new\n", "b/c.md": "same\n"}
    (tmp_path / "b").mkdir()
    (tmp_path / "a.md").write_text("old\n")
    (tmp_path / "b" / "c.md").write_text("same\n")
    (tmp_path / "gone.md").write_text("no source\n")
    stale = generate_docs.stale(pages, tmp_path)
    assert stale == ["a.md", "gone.md"]
    generate_docs.write(stale, pages, tmp_path)
    assert generate_docs.stale(pages, tmp_path) == []


def test_links_lead_somewhere() -> None:
    dead: list[str] = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


@pytest.mark.parametrize("name", ["embedding", "linalg_layer"])
def test_examples_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    error = re.search(r"largest error (\S+)", out)
    if name == "embedding":
        assert "saving and loading: True" in out and "--dim batch=VALUE" in out
    else:
        assert error is not None and float(error[1]) < 1e-4

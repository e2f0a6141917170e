"""The wheel, built from the source distribution: what is in it, and that it works alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "tests" / "models" / "llama2_decode_static_dynamo.onnx"


def run(*command: str | Path, **options: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)  # pyright: ignore
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as an index would hold it."""
    folder = tmp_path_factory.mktemp("dist")
    # Only what git tracks is in the checkout that a release is made from.
    source = folder / "source"
    names = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, names):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        origin = ROOT / name
        if origin.is_symlink():
            target.symlink_to(os.readlink(origin))
        elif origin.exists():
            target.write_bytes(origin.read_bytes())
    build = "from setuptools import build_meta as b; import sys; print(b.build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", build, folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    build = build.replace("build_sdist", "build_wheel")
    run(sys.executable, "-c", build, folder, cwd=unpacked)
    (found,) = folder.glob("*.whl")
    return found


def test_contents(wheel: Path) -> None:
    """Only the package: every module and data file of the checkout, no tests, no second copy."""
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    assert all(n.startswith("elk_ir/") for n in names)
    tracked = set(run("git", "-C", ROOT, "ls-files", "-z").split("\0"))
    wanted = set()
    for name in tracked:
        top, _, rest = name.partition("/")
        if top in ("dialects", "passes", "targets", "tools") and rest:
            wanted.add(f"elk_ir/{name}")
        elif top == "elk_ir" and rest not in ("dialects", "passes", "targets", "tools"):
            wanted.add(name)
    assert {n for n in wanted if (ROOT / n).exists()} <= names


def test_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = os.environ | {"PYTHONPATH": str(site)}
    where = run(
        sys.executable, "-c", "import elk_ir; print(elk_ir.__file__)", cwd=tmp_path, env=environment
    )
    assert Path(where.strip()).is_relative_to(site)
    elk = (sys.executable, "-m", "elk_ir.tools.elk")
    run(
        *elk,
        "compile",
        MODEL,
        "--chip",
        "test-64",
        "--policy",
        "basic",
        "-o",
        "out",
        cwd=tmp_path,
        env=environment,
    )
    text = (tmp_path / "out" / "report.json").read_text()
    assert '"lower_bound_s"' in text
    run(
        *elk,
        "run",
        "out",
        "--inputs",
        MODEL.with_suffix(".npz"),
        "--expect",
        MODEL.with_suffix(".npz"),
        cwd=tmp_path,
        env=environment,
    )

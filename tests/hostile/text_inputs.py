"""Malformed text: MLIR, chips, sweeps, profiles."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from elk_ir.chips import load_chip
from hostile.harness import OUT, Hostile

LIT = Path(__file__).parent.parent.parent / "lit_tests"
PROGRAMS = Path(__file__).parent.parent / "programs"
TO_ICCA = "convert-te-to-icca{chip=test-16},icca-schedule{policy=basic},icca-allocate"
TO_IPU = f"{TO_ICCA},icca-verify-program,convert-icca-to-ipu,ipu-verify-program"

PIECES = re.compile(r"\w+|\s+|.", re.DOTALL)
ODD = (
    "-1",
    "0",
    "99999999999999999999",
    "1e999",
    '"',
    "<",
    ">",
    "%",
    "@",
    "{",
    "}",
    "\x00",
    "é",
    "]",
)

VALUES = (
    "-1", "0", "1", "1e30", "-1e-30", "9223372036854775808", "nan", "inf", "-inf", "true", '"text"',
    "[]", "[1, 2]", "{}", "{ a = 1 }", '""', "1979-05-27", "0x10", "1_000", "",
)  # fmt: skip
"""What fields of TOML files are set to."""

SWEEP = """name = "s"
description = "d"
[base]
model = "m.onnx"
policy = "basic"
dim.batch = 2
[axes]
chip = ["test-16"]
hbm.bandwidth_bytes_per_s = { from = 1e9, to = 2e9, steps = 2 }
sync_cycles = { times = [1, 2] }
[[together]]
"network.port_in_bytes_per_s" = { times = [1.0] }
[sample]
points = 2
"""


def mutated(text: str, number: int) -> str:
    """A text with one to three of its words or signs removed, doubled, swapped or replaced."""
    rng = random.Random(number)
    pieces = PIECES.findall(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(pieces))
        match rng.randrange(5):
            case 0:
                del pieces[at]
            case 1:
                pieces.insert(at, pieces[at])
            case 2:
                other = rng.randrange(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3:
                pieces[at] = rng.choice(ODD)
            case _:
                pieces[at] = rng.choice(pieces)
    return "".join(pieces)


def mlir() -> Iterator[Hostile]:
    """IR of every dialect changed in a few places, cut, or nested without end."""
    texts = {p.stem: p.read_text() for p in sorted(PROGRAMS.glob("*.mlir")) if p.stem != "big"}
    for name, text in texts.items():
        for number in range(60):
            argv = ("m.mlir", "-p", TO_IPU)
            yield _mlir(f"{name} mutated {number}", mutated(text, number), argv)
    for path in sorted(LIT.rglob("*.mlir")):
        body = path.read_text(errors="replace")
        name = path.relative_to(LIT).with_suffix("").as_posix()
        split = body.split("// -----")[0]
        for number in range(3):
            yield _mlir(f"{name} mutated {number}", mutated(split, number), ("m.mlir",))
        half = len(split) // 2
        yield _mlir(f"{name} cut", split[:half], ("m.mlir",))
    for depth in (100, 1000, 20_000):
        yield _mlir(f"{depth} modules", "module {" * depth + "}" * depth, ("m.mlir",))
        nested = "tuple<" * depth + "i32" + ">" * depth
        yield _mlir(f"{depth} tuples", f"func.func @f(%a: {nested}) {{ func.return }}", ("m.mlir",))
        arrays = "[" * depth + "]" * depth
        yield _mlir(f"{depth} arrays", f"module attributes {{a = {arrays}}} {{}}", ("m.mlir",))
    for shape in ("9999999999999999x9999999999", "-1x4", "0x0x0", "x".join(["2"] * 500)):
        text = (
            f'func.func @main(%a: tensor<{shape}xf32> {{onnx.name = "a"}}) -> (tensor<{shape}xf32>'
            f' {{onnx.name = "r"}}) {{ func.return %a : tensor<{shape}xf32> }}'
        )
        yield _mlir(f"tensor {shape[:20]}", text, ("m.mlir", "-p", TO_IPU))
    for text in ("\x00" * 999, "module", "// only a comment", "\ufeffmodule {}", "%0 = " * 9999):
        yield _mlir(f"text {text[:12]!r}", text, ("m.mlir",))
    for options in PIPELINES:
        yield Hostile(
            f"mlir/pipeline {options[:40]!r}", {"m.mlir": b""}, ("m.mlir", "-p", options), "elk-opt"
        )


PIPELINES = (
    "", ",", "{", "}", "no-such-pass", "cse{", "cse{a}", "cse{a=}", "cse{=1}", 'cse{a="',
    "cse,,cse", "icca-set-plan{op=[}", "te-pipeline{a=1}", "convert-te-to-icca{chip=none}",
    "cse" * 5000, "icca-set-plan", "icca-set-plan{op=x}",
    "icca-schedule{policy=none}", "icca-schedule{time-budget-s=-1}",
    "convert-te-to-icca{chip=../../x.toml}", "icca-set-plan{op=\"(((\" grid=\"m=1\"}", "\x00", "é",
)  # fmt: skip
"""Pipelines that are wrong, or right with nothing to do."""


def _mlir(name: str, text: str, argv: tuple[str, ...]) -> Hostile:
    return Hostile(f"mlir/{name}", {"m.mlir": text.encode()}, argv, "elk-opt")


def chip_text() -> str:
    """A valid chip with every section and field."""
    data = load_chip("test-16").to_dict()
    sections = {k: v for k, v in data.items() if isinstance(v, dict)}
    lines = [f"{k} = {_toml(v)}" for k, v in data.items() if k not in sections]
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def changed_lines(text: str, values: tuple[str, ...] = VALUES) -> Iterator[tuple[str, str]]:
    """Every `key = value` line with each of some values, without its value, missing and doubled."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        key, equals, _ = line.partition(" = ")
        if equals:
            for value in values:
                yield (
                    f"{key} = {value}",
                    "\n".join([*lines[:i], f"{key} = {value}", *lines[i + 1 :]]),
                )
        yield f"without {line}", "\n".join([*lines[:i], *lines[i + 1 :]])
        yield f"{line} twice", "\n".join([*lines[: i + 1], line, *lines[i + 1 :]])


def chips() -> Iterator[Hostile]:
    """Chip files."""
    text = chip_text()
    for name, changed in changed_lines(text):
        yield _chip(name, changed)
    for number in range(60):
        yield _chip(f"mutated {number}", mutated(text, number))
    for name in ("c.toml", "none.toml", "../c.toml", "/dev/zero", "", ".", "test-16\\x00"):
        yield _chip(f"extends {name}", f'extends = "{name}"\n')
    yield _chip("nested", "a = " + "[" * 20_000 + "]" * 20_000)
    yield _chip("tables", ".".join(["a"] * 5000) + " = 1")
    yield Hostile("chip/bytes", {"c.toml": b"\xff\xfe\x00"}, ("chips", "c.toml"))
    for name in ("", ".", "/", "/dev/null", "none", "x" * 5000, "a\nb", "-1", "é.toml"):
        yield Hostile(f"chip/name {name[:10]!r}", {}, ("chips", name))


def _chip(name: str, text: str) -> Hostile:
    program = (PROGRAMS / "slice.mlir").read_bytes()
    argv = ("compile", "m.mlir", "--chip", "c.toml", "--policy", "basic", "-o", OUT)
    return Hostile(f"chip/{name}", {"c.toml": text.encode(), "m.mlir": program}, argv)


def sweeps() -> Iterator[Hostile]:
    """Sweep files."""
    for name, changed in changed_lines(SWEEP):
        yield _sweep(name, changed)
    for number in range(100):
        yield _sweep(f"mutated {number}", mutated(SWEEP, number))
    for name in ("/dev/zero", "/dev/null", ".", "../s.toml", "s.toml"):
        yield _sweep(f"model {name}", SWEEP.replace("m.onnx", name))
        yield _sweep(f"chip {name}", SWEEP.replace('"test-16"', f'"{name}"'))
    yield _sweep(
        "a huge grid",
        '[base]\nmodel = "m"\nchip = "c"\n[axes]\n'
        + "".join(f"dim.d{i} = {{ from = 1, to = 1000, steps = 1000 }}\n" for i in range(9)),
    )
    yield _sweep(
        "a huge axis",
        '[base]\nmodel="m"\nchip="c"\n[axes]\ndim.d={from=1,to=1e18,steps=99999999999}',
    )


def _sweep(name: str, text: str) -> Hostile:
    argv = ("explore", "s.toml", "-o", OUT)
    return Hostile(f"sweep/{name}", {"s.toml": text.encode()}, argv)


PROFILE = "kind,m,n,k,dtype,cycles\n" + "".join(
    f"contract,{m},{n},8,float16,{m * n}\n" for m in (8, 16, 32) for n in (8, 16, 32)
)


def profiles() -> Iterator[Hostile]:
    """Measurements for `elk profile fit`."""
    for number in range(40):
        text = mutated(PROFILE, number).encode()
        argv = ("profile", "fit", "p.csv", "-o", f"{OUT}.txt")
        yield Hostile(f"profile/mutated {number}", {"p.csv": text}, argv)


def cases() -> Iterator[Hostile]:
    """All of them."""
    yield from mlir()
    yield from chips()
    yield from sweeps()
    yield from profiles()

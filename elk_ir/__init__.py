"""elk-ir: a compiler for inter-core connected AI chips. Heavy modules are imported on first use.

program = elk_ir.compile("model.onnx", chip="test-64")
outputs = program.run(inputs)

docs/embedding.md has everything that can be done from Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elk_ir.chips import Chip, load_chip
    from elk_ir.comparison import compare_policies
    from elk_ir.compiler import compile_model as compile
    from elk_ir.decode import compile_decoder
    from elk_ir.errors import ElkError
    from elk_ir.hosted import HostedProgram
    from elk_ir.program import Program, load
    from elk_ir.program_set import ProgramSet, compile_set, load_set
    from elk_ir.verify import verify_levels

__version__ = "0.1.0"

__all__ = [
    "Chip",
    "ElkError",
    "HostedProgram",
    "Program",
    "ProgramSet",
    "__version__",
    "compare_policies",
    "compile",
    "compile_decoder",
    "compile_set",
    "load",
    "load_chip",
    "load_set",
    "verify_levels",
]

_LAZY = {
    "Chip": "elk_ir.chips:Chip",
    "ElkError": "elk_ir.errors:ElkError",
    "HostedProgram": "elk_ir.hosted:HostedProgram",
    "Program": "elk_ir.program:Program",
    "ProgramSet": "elk_ir.program_set:ProgramSet",
    "compare_policies": "elk_ir.comparison:compare_policies",
    "compile": "elk_ir.compiler:compile_model",
    "compile_decoder": "elk_ir.decode:compile_decoder",
    "compile_set": "elk_ir.program_set:compile_set",
    "load": "elk_ir.program:load",
    "load_chip": "elk_ir.chips:load_chip",
    "load_set": "elk_ir.program_set:load_set",
    "verify_levels": "elk_ir.verify:verify_levels",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'elk_ir' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value

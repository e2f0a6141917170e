"""elk-ir: a compiler for inter-core connected AI chips. Heavy modules are imported on first use.

program = elk_ir.compile("model.onnx", chip="test-64")
outputs = program.run(inputs)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elk_ir.compiler import compile_model as compile
    from elk_ir.errors import ElkError
    from elk_ir.program import Program, load

__version__ = "0.1.0"

__all__ = ["ElkError", "Program", "__version__", "compile", "load"]

_LAZY = {
    "ElkError": "elk_ir.errors:ElkError",
    "Program": "elk_ir.program:Program",
    "compile": "elk_ir.compiler:compile_model",
    "load": "elk_ir.program:load",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'elk_ir' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value

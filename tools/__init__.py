"""Imported as `elk_ir.tools`: this folder is linked into the package by a relative symlink."""

if __name__ != "elk_ir.tools":
    raise ImportError("import elk_ir.tools, not tools: see docs/architecture.md, 'Layout'")

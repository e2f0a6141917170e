"""Imported as `elk_ir.passes`: this folder is linked into the package by a relative symlink."""

if __name__ != "elk_ir.passes":
    raise ImportError("import elk_ir.passes, not passes: see docs/architecture.md, 'Layout'")

"""Imported as `elk_ir.dialects`: this folder is linked into the package by a relative symlink."""

if __name__ != "elk_ir.dialects":
    raise ImportError("import elk_ir.dialects, not dialects: see docs/architecture.md, 'Layout'")

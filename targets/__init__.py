"""Imported as `elk_ir.targets`: this folder is linked into the package by a relative symlink."""

if __name__ != "elk_ir.targets":
    raise ImportError("import elk_ir.targets, not targets: see docs/architecture.md, 'Layout'")

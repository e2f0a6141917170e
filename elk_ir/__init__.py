"""elk-ir: a compiler for inter-core connected AI chips. Heavy modules are imported on first use."""

__version__ = "0.1.0"

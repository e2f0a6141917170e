"""Differential fuzzing: random models and programs on random chips under random plans, every level
of the compiler against ONNX's evaluators (docs/testing.md). Run with `make fuzz`."""

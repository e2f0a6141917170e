"""torch.compile with backend "elk": PyTorch's numbers, and warnings that name why not."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install elk-ir[torch])")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter needs onnxscript")

from elk_ir.errors import UsageError  # noqa: E402
from elk_ir.torch_backend import FallbackWarning, backend  # noqa: E402

OPTIONS = {"chip": "test-16", "policy": "basic"}


def _example() -> ModuleType:
    path = Path(__file__).parent.parent / "examples" / "torch_compile.py"
    spec = importlib.util.spec_from_file_location("torch_compile_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(fn: Any, programs: list[Any] | None = None, **options: Any) -> Any:
    on_program = (lambda p: None) if programs is None else programs.append
    return torch.compile(
        fn, backend="elk", options={**OPTIONS, "on_program": on_program, **options}
    )


def check(fn: Any, *args: Any, tolerance: float = 1e-5) -> list[Any]:
    """Compile and compare without any fallback; the programs."""
    programs: list[Any] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        want = fn(*args)
        got = compiled(fn, programs)(*args)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    return programs


def test_small_cnn() -> None:
    model = _example().SmallCnn().eval()
    (program,) = check(model, torch.randn(2, 3, 16, 16))
    # The parameters are weights of the program, not inputs.
    assert len(program.signature.inputs) == 1


def test_small_transformer() -> None:
    (program,) = check(_example().SmallTransformer().eval(), torch.randn(2, 12, 32))
    assert "attention" in {o["kind"] for o in program.report["operators"]}


def test_several_outputs_constants_and_inputs_as_they_are() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x, 3, (x + y, None)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    check(fn, x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype: str) -> None:
    kind = getattr(torch, dtype)
    check(lambda x: torch.relu(x) * 2, torch.randn(4, 8).to(kind))


def test_graph_breaks_make_programs_of_the_parts() -> None:
    def fn(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    assert len(check(fn, torch.randn(4, 4))) == 2


def test_other_shapes_and_changed_parameters_are_compiled_anew() -> None:
    model = torch.nn.Linear(4, 3)
    programs: list[Any] = []
    fn = compiled(model, programs)
    with torch.no_grad():
        for rows in (2, 5, 2):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(fn(x), model(x), rtol=1e-5, atol=1e-5)
        before = len(programs)
        model.weight.mul_(-3)
        torch.testing.assert_close(fn(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(programs) == before + 1


def test_gradients_fall_back_and_are_right() -> None:
    model = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    with pytest.warns(FallbackWarning, match="gradients are wanted"):
        compiled(model)(x).sum().backward()
    torch.testing.assert_close(model.weight.grad, x.sum(0).expand(3, 4))


def test_what_can_not_be_lowered_falls_back_by_name() -> None:
    x = torch.randn(6, 6)
    with torch.no_grad(), pytest.warns(FallbackWarning, match="in pass convert-onnx-to-te|Det"):
        got = compiled(torch.linalg.det)(x)
    torch.testing.assert_close(got, torch.linalg.det(x))


def test_buffers_changed_in_place_fall_back() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x)
            return x + self.seen

    model = Counter()
    with torch.no_grad(), pytest.warns(FallbackWarning, match="in place"):
        fn = compiled(model)
        fn(torch.ones(3))
        got = fn(torch.ones(3))
    torch.testing.assert_close(got, torch.full((3,), 3.0))


def test_a_model_that_does_not_fit_falls_back() -> None:
    model = torch.nn.Linear(4, 3)
    with torch.no_grad(), pytest.warns(FallbackWarning, match="unknown chip 'no-such-chip'"):
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(model, chip="no-such-chip")(x), model(x))


def test_options() -> None:
    x = torch.randn(4)
    with torch.no_grad():
        fn = torch.compile(torch.neg, backend=backend(**OPTIONS))
        torch.testing.assert_close(fn(x), -x)
        with pytest.raises(Exception, match="unknown option 'chips'") as caught:
            compiled(torch.neg, chips="test-16")(torch.randn(5))
    chain, error = [], caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert any(isinstance(e, UsageError) for e in chain)

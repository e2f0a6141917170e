"""`torch.compile(model, backend="elk")`: a small CNN and a small transformer, and their errors.

Needs `pip install elk-ir[torch]`. Run: python examples/torch_compile.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import elk_ir


class SmallCnn(nn.Module):
    """Convolutions, a batch norm, pooling, a classifier: (n, 3, 16, 16) to (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.features(x).flatten(1))


class SmallTransformer(nn.Module):
    """One decoder block: causal attention and a gated MLP, (n, length, 32) to the same."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def largest_error(model: nn.Module, x: torch.Tensor, **options: object) -> float:
    """How far the program's output is from PyTorch's, relative to the largest expected value."""
    model = model.eval()
    with torch.no_grad():
        expected = model(x)
        got = torch.compile(model, backend="elk", options=options)(x)
    return float((got - expected).abs().max() / expected.abs().max())


def main() -> None:
    """Compile both models for 64 cores, and print what they take."""
    torch.manual_seed(0)
    programs: list[elk_ir.Program] = []
    for model, shape in ((SmallCnn(), (2, 3, 16, 16)), (SmallTransformer(), (2, 12, 32))):
        error = largest_error(
            model,
            torch.randn(shape),
            chip="test-64",
            policy="basic",
            simulate=True,
            on_program=programs.append,
        )
        report = programs[-1].report
        print(
            f"{type(model).__name__}: {len(report['operators'])} operators,"
            f" {report['time_s'] * 1e6:.1f} µs on {report['chip']}, largest error {error:.1e}"
        )


if __name__ == "__main__":
    main()

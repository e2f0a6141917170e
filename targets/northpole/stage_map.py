"""`-t northpole-map`: the mapping of a model to cards, as text, JSON or SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from elk_ir.errors import ElkError
from elk_ir.northpole.report import FORMATS, stage_map_json, stage_map_svg, stage_map_text
from elk_ir.targets.northpole.read import mapping_of


@dataclass(frozen=True)
class NorthpoleMapTarget(Target):
    """Print which layer is on which card, with bytes, times and the pipeline.

    elk-opt model.onnx -p '…,northpole-map-stages' -t 'northpole-map{format=json}'
    """

    name = "northpole-map"

    format: str = "text"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Write it. Raises ElkError for an unknown format or a module without a mapping."""
        if self.format not in FORMATS:
            raise ElkError(f"unknown format {self.format!r}", hint=f"use {', '.join(FORMATS)}")
        mapping = mapping_of(module)
        writers = {"text": stage_map_text, "json": stage_map_json, "svg": stage_map_svg}
        output.write(writers[self.format](mapping))

"""What elk-ir adds to xDSL: dialects, passes, targets and frontends, found by `xdsl-opt` as well.

Each entry is `"name": "module:Attribute"` and is imported on first use, so that a start of the
driver costs nothing for what it does not use. Adding one is one line, in alphabetical order. A
name that clashes with another universe is an error at start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from xdsl.ir import Dialect
from xdsl.universe import Universe

DIALECTS: dict[str, str] = {
    "icca": "elk_ir.dialects.icca:ICCA",
    "ipu": "elk_ir.dialects.ipu:IPU",
    "northpole": "elk_ir.dialects.northpole:NORTHPOLE",
    "onnx": "elk_ir.dialects.onnx:ONNX",
    "te": "elk_ir.dialects.te:TE",
}

# Upstream's dialects with what xDSL lacks of them. They can't be in our universe, where a name that
# is in use is an error; `all_dialects` puts them in the place of xDSL's.
UPSTREAM: dict[str, str] = {
    "linalg": "elk_ir.dialects.linalg:LINALG",
}

PASSES: dict[str, str] = {
    "convert-icca-to-ipu": "elk_ir.passes.convert_icca_to_ipu:ConvertIccaToIpuPass",
    "convert-icca-to-northpole": (
        "elk_ir.passes.convert_icca_to_northpole:ConvertIccaToNorthpolePass"
    ),
    "convert-linalg-to-te": "elk_ir.passes.convert_linalg_to_te:ConvertLinalgToTePass",
    "convert-onnx-to-te": "elk_ir.passes.convert_onnx_to_te:ConvertOnnxToTePass",
    "convert-te-to-icca": "elk_ir.passes.convert_te_to_icca:ConvertTeToIccaPass",
    "icca-allocate": "elk_ir.passes.icca_allocate:IccaAllocatePass",
    "icca-annotate-cycles": "elk_ir.passes.icca_annotate_cycles:IccaAnnotateCyclesPass",
    "icca-carry-preload": "elk_ir.passes.icca_carry_preload:IccaCarryPreloadPass",
    "icca-make-resident": "elk_ir.passes.icca_make_resident:IccaMakeResidentPass",
    "icca-reorder-preloads": "elk_ir.passes.icca_reorder_preloads:IccaReorderPreloadsPass",
    "icca-schedule": "elk_ir.passes.icca_schedule:IccaSchedulePass",
    "icca-set-plan": "elk_ir.passes.icca_set_plan:IccaSetPlanPass",
    "icca-spill": "elk_ir.passes.icca_spill:IccaSpillPass",
    "icca-unroll-layers": "elk_ir.passes.icca_unroll_layers:IccaUnrollLayersPass",
    "icca-verify-program": "elk_ir.passes.icca_verify_program:IccaVerifyProgramPass",
    "ipu-verify-program": "elk_ir.passes.ipu_verify_program:IpuVerifyProgramPass",
    "northpole-map-stages": "elk_ir.passes.northpole_map_stages:NorthpoleMapStagesPass",
    "northpole-place": "elk_ir.passes.northpole_place:NorthpolePlacePass",
    "northpole-verify-program": (
        "elk_ir.passes.northpole_verify_program:NorthpoleVerifyProgramPass"
    ),
    "onnx-cut-host": "elk_ir.passes.onnx_cut_host:OnnxCutHostPass",
    "onnx-fold-constants": "elk_ir.passes.onnx_fold_constants:OnnxFoldConstantsPass",
    "te-canonicalize": "elk_ir.passes.te_canonicalize:TeCanonicalizePass",
    "te-change-floats": "elk_ir.passes.te_change_floats:TeChangeFloatsPass",
    "te-chunk-attention": "elk_ir.passes.te_chunk_attention:TeChunkAttentionPass",
    "te-chunk-large": "elk_ir.passes.te_chunk_large:TeChunkLargePass",
    "te-fold-quantization": "elk_ir.passes.te_fold_quantization:TeFoldQuantizationPass",
    "te-fold-views": "elk_ir.passes.te_fold_views:TeFoldViewsPass",
    "te-fuse-attention": "elk_ir.passes.te_fuse_attention:TeFuseAttentionPass",
    "te-fuse-concat": "elk_ir.passes.te_fuse_concat:TeFuseConcatPass",
    "te-fuse-elementwise": "elk_ir.passes.te_fuse_elementwise:TeFuseElementwisePass",
    "te-fuse-normalize": "elk_ir.passes.te_fuse_normalize:TeFuseNormalizePass",
    "te-make-state": "elk_ir.passes.te_make_state:TeMakeStatePass",
    "te-mask-state": "elk_ir.passes.te_mask_state:TeMaskStatePass",
    "te-merge-products": "elk_ir.passes.te_merge_products:TeMergeProductsPass",
    "te-narrow-masks": "elk_ir.passes.te_narrow_masks:TeNarrowMasksPass",
    "te-quantize": "elk_ir.passes.te_quantize:TeQuantizePass",
    "te-roll-layers": "elk_ir.passes.te_roll_layers:TeRollLayersPass",
    "te-state-capacity": "elk_ir.passes.te_state_capacity:TeStateCapacityPass",
    "te-verify-quantized": "elk_ir.passes.te_verify_quantized:TeVerifyQuantizedPass",
}

TARGETS: dict[str, str] = {
    "device-program": "elk_ir.targets.ipu.device_program:DeviceProgramTarget",
    "northpole-map": "elk_ir.targets.northpole.stage_map:NorthpoleMapTarget",
    "poplar-cpp": "elk_ir.targets.ipu.poplar_cpp:PoplarCppTarget",
}

# The key of a frontend is the extension of the files it reads.
FRONTENDS: dict[str, str] = {
    "onnx": "elk_ir.frontend.xdsl_frontend:OnnxFrontend",
}


def resolve(path: str) -> Any:
    """Import `module:Attribute` and return the attribute. Raises ImportError or AttributeError."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def lazy(table: Mapping[str, str]) -> dict[str, Callable[[], Any]]:
    """A registry of factories, in alphabetical order, each importing its entry when called."""

    def factory(path: str) -> Callable[[], Any]:
        return lambda: resolve(path)

    return {name: factory(path) for name, path in sorted(table.items())}


ELK_UNIVERSE = Universe(
    all_dialects=lazy(DIALECTS),
    all_passes=lazy(PASSES),
    all_targets=lazy(TARGETS),
    all_frontends=lazy(FRONTENDS),
)


def all_dialects(universe: Universe) -> dict[str, Callable[[], Dialect]]:
    """The dialects of a universe, those that we complete in the place of xDSL's own."""
    return {**universe.all_dialects, **lazy(UPSTREAM)}

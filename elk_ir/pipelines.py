"""Named pipelines: `elk-opt -p NAME` runs the passes below, `elk-opt --list-pipelines` lists them.

A pipeline may use another one by its name. Alphabetical; one line each.
"""

from __future__ import annotations

PIPELINES: dict[str, str] = {
    "cleanup": "canonicalize,cse,dce",
    "te-pipeline": (
        "te-fold-quantization,te-canonicalize{simplify=false},te-make-state,te-roll-layers,"
        "te-canonicalize,te-fuse-normalize,te-fuse-attention,te-merge-products,te-fold-views,"
        "te-fuse-concat,te-fuse-elementwise,te-fold-views,te-canonicalize,te-narrow-masks,"
        "te-mask-state"
    ),
}

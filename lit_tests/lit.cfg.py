"""Configuration of lit: `lit lit_tests/`. The tools are those of the environment lit runs in.

`--param fast=1` leaves out tests that require the feature `slow`.
"""

import os
import sys
from pathlib import Path

import lit.formats

# lit provides these two names when it executes this file.
config = globals()["config"]
lit_config = globals()["lit_config"]

here = Path(__file__).resolve().parent
shared = here.parent.parent / "shared"

config.name = "elk-ir"
config.test_source_root = str(here)
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs", "Output"]

scripts = str(Path(sys.executable).parent)
config.environment["PATH"] = os.pathsep.join((scripts, config.environment.get("PATH", "")))
config.substitutions.append(("%{shared}", str(shared)))

if shared.is_dir():
    config.available_features.add("shared")
if not lit_config.params.get("fast"):
    config.available_features.add("slow")

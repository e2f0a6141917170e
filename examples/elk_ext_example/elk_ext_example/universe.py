"""The dialects, passes and emitters of this package, for elk-opt, xdsl-opt and the compiler."""

from importlib import import_module

from xdsl.universe import Universe


def _later(module, name):
    return lambda: getattr(import_module(f"elk_ext_example.{module}"), name)


UNIVERSE = Universe(
    all_dialects={
        "ext": _later("power_mean", "EXT"),
        "toy": _later("toy_target", "TOY_DIALECT"),
    },
    all_passes={"convert-icca-to-toy": _later("toy_target", "ConvertIccaToToyPass")},
    all_targets={"toy-listing": _later("toy_target", "ToyListing")},
)

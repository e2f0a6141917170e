"""The dialects, passes and emitters of this package, for elk-opt, xdsl-opt and the compiler."""

from xdsl.universe import Universe


def _power_mean():
    from elk_ext_example.power_mean import EXT

    return EXT


def _toy():
    from elk_ext_example.toy_target import TOY_DIALECT

    return TOY_DIALECT


def _lowering():
    from elk_ext_example.toy_target import ConvertIccaToToyPass

    return ConvertIccaToToyPass


def _listing():
    from elk_ext_example.toy_target import ToyListing

    return ToyListing


UNIVERSE = Universe(
    all_dialects={"ext": _power_mean, "toy": _toy},
    all_passes={"convert-icca-to-toy": _lowering},
    all_targets={"toy-listing": _listing},
)

"""Machine descriptions: TOML files, and the dataclass that the whole compiler reads.

`load_chip("test-16")` is the usual way in; docs/chips.md explains the fields.
"""

from elk_ir.chips.chip import Chip
from elk_ir.chips.load import builtin_chips, chip_from_toml, chip_names, load_chip
from elk_ir.chips.sections import Energy, Hbm, Network, NorthPole

__all__ = [
    "Chip",
    "Energy",
    "Hbm",
    "Network",
    "NorthPole",
    "builtin_chips",
    "chip_from_toml",
    "chip_names",
    "load_chip",
]

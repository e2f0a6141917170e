"""Regressions of measured cycles: LightGBM linear trees over tile shapes, lines over bytes.

A tree predicts log cycles from the logs of its columns (and, where cross-validation prefers it, of
their product), because costs are products of extents over decades. Fits are deterministic: one
thread, fixed seed. LightGBM is imported when something is fitted or predicted, not before.

Each fit knows its range: the smallest and largest measured value of every product of columns.
Outside any of them a prediction would be an extrapolation, and `Fit.covers` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

FOLDS = 5
LEAST_ROWS = 20
SHUFFLES = 3

TREE_KINDS: dict[str, tuple[str, ...]] = {
    "conv": ("batch", "in_channels", "out_channels", "out_pixels", "kernel_pixels"),
    "pool": ("channels", "out_pixels", "kernel_pixels"),
    "product": ("batch", "rows", "cols", "inner"),
    "reduction": ("outputs", "length"),
}
"""Columns of each kind of tile; extents of one core's tile, an operand element of the sidecar's
`element_bytes`."""

LINE_KINDS: dict[str, tuple[str, ...]] = {
    "copy": ("bytes",),
    "exchange": ("bytes",),
    "fill": ("bytes",),
    "shift": ("bytes",),
}
"""Transfers, without barriers. A line and not a tree: the enumeration needs them monotonic."""

KINDS = TREE_KINDS | LINE_KINDS


@dataclass(frozen=True)
class Errors:
    """Relative errors |predicted / measured - 1| of cross-validation, over all folds and shuffles.

    `worst_at` holds the columns, the measured and the predicted cycles of the worst row.
    """

    median: float
    p90: float
    worst: float
    worst_at: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Fit:
    """One fitted kind. `text` is the LightGBM model of a tree, empty for a line.

    `ranges` maps products of columns ("rows*inner") to the measured [least, most].
    `macs_per_cycle`, if not 0, is the rate of the core on which cycles were measured: the fit says
    nothing about cores of another rate.
    """

    kind: str
    columns: tuple[str, ...]
    rows: int
    ranges: tuple[tuple[str, float, float], ...]
    errors: Errors
    element_bytes: int = 2
    macs_per_cycle: float = 0.0
    with_product: bool = False
    leaves: int = 0
    intercept: float = 0.0
    slope: float = 0.0
    text: str = ""

    def covers(self, shapes: np.ndarray) -> np.ndarray:
        """bool (n,): rows of `shapes` (n, columns) within every measured range."""
        rows = np.arange(shapes.shape[0])
        # Single columns come first and leave few rows for their products.
        for name, least, most in self.ranges:
            value = np.ones(rows.shape[0])
            for column in name.split("*"):
                value *= shapes[rows, self.columns.index(column)]
            # A last digit of a product must not decide.
            inside = (value >= least * (1.0 - 1e-9)) & (value <= most * (1.0 + 1e-9))
            if not inside.all():
                rows = rows[inside]
        covered = np.zeros(shapes.shape[0], dtype=bool)
        covered[rows] = True
        return covered

    def predict(self, shapes: np.ndarray) -> np.ndarray:
        """Cycles (n,) of `shapes` (n, columns), whether covered or not. Equal rows, of which a
        search has many, are computed once."""
        if not self.text:
            return self.intercept + self.slope * shapes[:, 0]
        if shapes.shape[0] == 0:
            return np.zeros(0)
        unique, inverse = _unique_rows(shapes)
        return _known(self.text, self.with_product).cycles(unique)[inverse]


class _Known:
    """The predictions of one model, remembered: searches ask for the same tiles in every batch."""

    _MOST = 1_000_000

    def __init__(self, text: str, with_product: bool) -> None:
        import lightgbm

        self._booster = lightgbm.Booster(model_str=text)
        self._with_product = with_product
        self._cycles: dict[bytes, float] = {}

    def cycles(self, shapes: np.ndarray) -> np.ndarray:
        """Cycles (n,) of float64 `shapes` (n, columns)."""
        shapes = np.ascontiguousarray(shapes, dtype=np.float64)
        size = shapes.shape[1] * shapes.itemsize
        data = shapes.tobytes()
        keys = [data[i : i + size] for i in range(0, len(data), size)]
        known = self._cycles
        new = [i for i, key in enumerate(keys) if key not in known]
        if new:
            if len(known) + len(new) > self._MOST:
                known.clear()
                new = list(range(len(keys)))
            features = _features(shapes[new], self._with_product)
            found = np.exp(np.asarray(self._booster.predict(features, num_threads=1)))
            known.update(zip((keys[i] for i in new), found.tolist(), strict=True))
        return np.fromiter((known[key] for key in keys), np.float64, len(keys))


@lru_cache(maxsize=16)
def _known(text: str, with_product: bool) -> _Known:
    return _Known(text, with_product)


def _unique_rows(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unique rows and where each row is among them. Whole numbers pack into one integer each,
    which sorts some ten times faster than rows do."""
    top = shapes.max(axis=0) + 1.0
    whole = bool((shapes >= 0).all()) and bool((shapes == np.floor(shapes)).all())
    if whole and float(np.prod(top)) < 2.0**62:
        keys = np.ravel_multi_index(
            tuple(shapes.T.astype(np.int64)), tuple(int(t) for t in top.tolist())
        )
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return shapes[first], inverse.reshape(-1)
    unique, inverse = np.unique(shapes, axis=0, return_inverse=True)
    return unique, inverse.reshape(-1)


def _features(shapes: np.ndarray, with_product: bool) -> np.ndarray:
    logs = np.log(shapes.astype(np.float64))
    return np.column_stack([logs, logs.sum(axis=1)]) if with_product else logs


def measured_ranges(
    columns: tuple[str, ...], shapes: np.ndarray
) -> tuple[tuple[str, float, float], ...]:
    """Least and most of every product of one or more columns over the rows of `shapes`."""
    found: list[tuple[str, float, float]] = []
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            value = shapes[:, list(chosen)].prod(axis=1)
            name = "*".join(columns[c] for c in chosen)
            found.append((name, float(value.min()), float(value.max())))
    return tuple(found)


# ---------------------------------------------------------------------- fitting


@dataclass(frozen=True)
class _Choice:
    """A tree that cross-validation may choose."""

    with_product: bool
    leaves: int


_MANY_ROWS = 100  # from here on 8 leaves are better than 4 on the measured tables, below worse


def _choices(rows: int) -> tuple[_Choice, ...]:
    leaves = 8 if rows >= _MANY_ROWS else 4
    return _Choice(False, leaves), _Choice(True, leaves)


# A learning rate of 0.1 over 300 rounds; fewer rounds are smaller and faster, and worse at worst.
_ROUNDS = 300
_TREE: Mapping[str, Any] = {
    "objective": "l2",
    "linear_tree": True,
    "linear_lambda": 0.1,
    "learning_rate": 0.1,
    "min_data_in_leaf": 5,
    "min_data_in_bin": 1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 7,
    "verbose": -1,
}

_Predictor = Callable[[np.ndarray], np.ndarray]


def fit(
    kind: str,
    shapes: np.ndarray,
    cycles: np.ndarray,
    *,
    element_bytes: int = 2,
    macs_per_cycle: float = 0.0,
) -> Fit:
    """Fits `cycles` (n,) > 0 over `shapes` (n, columns of the kind) > 0.

    Trees choose whether to see the product of all columns by the mean absolute log error of
    cross-validation. Raises ValueError for an unknown kind or fewer than LEAST_ROWS rows.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind '{kind}'")
    if shapes.shape[0] < LEAST_ROWS:
        raise ValueError(f"{shapes.shape[0]} rows, but a fit needs at least {LEAST_ROWS}")
    shapes, cycles = shapes.astype(np.float64), cycles.astype(np.float64)
    columns = KINDS[kind]
    ranges = measured_ranges(columns, shapes)
    rows = shapes.shape[0]
    if kind in LINE_KINDS:
        intercept, slope = _line(shapes[:, 0], cycles)
        held_out = cross_validate(shapes, cycles, _line_predictor)
        errors = summarize(columns, shapes, cycles, held_out)
        return Fit(kind, columns, rows, ranges, errors, 0, 0.0, intercept=intercept, slope=slope)
    tried = {c: cross_validate(shapes, cycles, _tree_trainer(c)) for c in _choices(rows)}
    best = min(tried, key=lambda c: float(np.abs(np.log(tried[c] / cycles)).mean()))
    booster = _train(best, shapes, cycles)
    return Fit(
        kind,
        columns,
        rows,
        ranges,
        summarize(columns, shapes, cycles, tried[best]),
        element_bytes,
        macs_per_cycle,
        best.with_product,
        best.leaves,
        text=booster.model_to_string(),
    )


def cross_validate(
    shapes: np.ndarray,
    cycles: np.ndarray,
    train: Callable[[np.ndarray, np.ndarray], _Predictor],
) -> np.ndarray:
    """Predictions (SHUFFLES, n) of every row by models that have not seen it."""
    predicted = np.zeros((SHUFFLES, cycles.shape[0]))
    for shuffle, held_out in _folds(cycles.shape[0]):
        predictor = train(shapes[~held_out], cycles[~held_out])
        predicted[shuffle, held_out] = predictor(shapes[held_out])
    return predicted


def summarize(
    columns: tuple[str, ...], shapes: np.ndarray, cycles: np.ndarray, predicted: np.ndarray
) -> Errors:
    """What cross-validated predictions (shuffles, n) are worth."""
    errors = np.abs(predicted / cycles - 1.0)
    shuffle, row = np.unravel_index(int(errors.argmax()), errors.shape)
    at = [(c, float(v)) for c, v in zip(columns, shapes[row], strict=True)]
    at += [("cycles", float(cycles[row])), ("predicted", round(float(predicted[shuffle, row]), 1))]
    median, p90 = (round(float(q), 6) for q in np.quantile(errors, [0.5, 0.9]))
    return Errors(median, p90, round(float(errors.max()), 6), tuple(at))


def _folds(rows: int) -> Iterator[tuple[int, np.ndarray]]:
    for shuffle in range(SHUFFLES):
        fold = np.random.default_rng(shuffle).permutation(rows) % FOLDS
        for k in range(FOLDS):
            yield shuffle, fold == k


def tree_trainer(found: Fit) -> Callable[[np.ndarray, np.ndarray], _Predictor]:
    """Trains as `found` was trained, for cross-validation."""
    return _tree_trainer(_Choice(found.with_product, found.leaves))


def _tree_trainer(choice: _Choice) -> Callable[[np.ndarray, np.ndarray], _Predictor]:
    def train(shapes: np.ndarray, cycles: np.ndarray) -> _Predictor:
        booster = _train(choice, shapes, cycles)
        return lambda x: np.exp(np.asarray(booster.predict(_features(x, choice.with_product))))

    return train


def _train(choice: _Choice, shapes: np.ndarray, cycles: np.ndarray) -> Any:
    import lightgbm

    params = dict(_TREE, num_leaves=choice.leaves)
    data = lightgbm.Dataset(
        _features(shapes, choice.with_product), np.log(cycles), params=dict(params)
    )
    return lightgbm.train(params, data, _ROUNDS)


def _line_predictor(shapes: np.ndarray, cycles: np.ndarray) -> _Predictor:
    intercept, slope = _line(shapes[:, 0], cycles)
    return lambda x: intercept + slope * x[:, 0]


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Intercept and slope, neither negative, of least squares of relative errors: small transfers
    matter as much as large ones."""
    a = np.column_stack([1.0 / y, x / y])
    solution, *_ = np.linalg.lstsq(a, np.ones_like(y), rcond=None)
    intercept, slope = float(solution[0]), float(solution[1])
    if slope < 0:
        return float(1.0 / np.mean(1.0 / y)), 0.0
    if intercept < 0:
        ratio = x / y
        return 0.0, float(ratio.sum() / (ratio * ratio).sum())
    return intercept, slope

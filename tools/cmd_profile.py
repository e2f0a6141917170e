"""`elk profile fit|show`: cost models fitted on measured tiles."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from elk_ir.errors import UsageError


def add_parser(subparsers: Any) -> None:
    """Adds the command to what `ArgumentParser.add_subparsers()` returned."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile",
        help="fit a cost model on measured tiles, or show one",
        description="Fits cost models on measured tiles and transfers of a device, and shows what"
        ' a model covers. A chip file uses one by `cost_model = "model.txt"`.'
        " docs/cost-model.md has the CSV formats.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    fit = actions.add_parser("fit", help="fit a model on a CSV file of measurements")
    fit.add_argument("data", metavar="DATA.csv", help="a row a measurement: extents and cycles")
    fit.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="MODEL.txt",
        help="the model to write; MODEL.json, which describes it, is written beside it",
    )
    fit.add_argument(
        "--target", default="cycles", metavar="COLUMN", help="the measured cycles (cycles)"
    )
    fit.add_argument(
        "--base",
        choices=("roofline", "ipu-mk2"),
        default="roofline",
        help="what prices everything that was not measured (roofline)",
    )
    fit.add_argument(
        "--element-bytes",
        type=int,
        choices=(1, 2, 4, 8),
        default=2,
        help="bytes of an operand's element in these measurements (2)",
    )
    fit.add_argument("--source", metavar="TEXT", help="where the measurements come from")
    fit.add_argument("--json", action="store_true", help="print one JSON object instead")
    show = actions.add_parser("show", help="what a model covers, its source, ranges and errors")
    show.add_argument(
        "model", nargs="?", metavar="MODEL.txt", help="a fitted model; the shipped one by default"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Fits or shows, prints the answer and returns the exit code. Raises ElkError for data or
    models that are no good."""
    from elk_ir.cost.fit_files import SHIPPED, describe, load_fits

    if args.action == "fit":
        fits = _fit(args)
    else:
        fits = load_fits(SHIPPED if args.model is None else Path(args.model))
    if args.json:
        sys.stdout.write(json.dumps(describe(fits), indent=2) + "\n")
    else:
        sys.stdout.write(_text(describe(fits)))
    return 0


def _fit(args: argparse.Namespace) -> Any:
    from elk_ir.cost.fit_files import FitSet, save_fits, sidecar_of
    from elk_ir.cost.linear_tree import fit
    from elk_ir.cost.profile_data import read_measurements

    data, output = Path(args.data), Path(args.output)
    if output.suffix != ".txt":
        raise UsageError(f"-o {output}: the model's name must end in .txt")
    if data.resolve() in (output.resolve(), sidecar_of(output).resolve()):
        raise UsageError(f"-o {output}: would overwrite the measurements")
    measured = read_measurements(data, args.target)
    found = tuple(
        fit(m.kind, m.shapes, m.cycles, element_bytes=args.element_bytes) for m in measured
    )
    fits = FitSet(output.stem, args.base, args.source or data.name, found)
    save_fits(fits, output)
    return fits


def _text(model: dict[str, Any]) -> str:
    """What a model covers, in words and one table."""
    lines = [
        f"{model['name']}: {model['source']}",
        f"Everything else, and tiles out of range (flagged): {model['base']}.",
        "",
        "Relative errors of 5-fold cross-validation:",
        f"{'kind':<10} {'rows':>5} {'median':>8} {'p90':>8} {'worst':>8}  form",
    ]
    for fit in model["fits"]:
        e = fit["errors"]
        lines.append(
            f"{fit['kind']:<10} {fit['rows']:>5} {e['median']:>8.1%} {e['p90']:>8.1%}"
            f" {e['worst']:>8.1%}  {_form(fit)}"
        )
    for fit in model["fits"]:
        lines += ["", f"{fit['kind']}: measured range, and the worst prediction"]
        worst = fit["errors"]["worst_at"]
        for column in fit["columns"]:
            least, most = fit["ranges"][column]
            lines.append(
                f"  {column:<14} {least:>12,.0f} .. {most:<12,.0f} {worst[column]:>12,.0f}"
            )
        if len(fit["columns"]) > 1:
            least, most = fit["ranges"]["*".join(fit["columns"])]
            lines.append(f"  {'their product':<14} {least:>12,.0f} .. {most:<12,.0f}")
        lines.append(
            f"  there: {worst['cycles']:,.0f} cycles measured, {worst['predicted']:,.0f} predicted"
        )
    return "\n".join([*lines, ""])


def _form(fit: dict[str, Any]) -> str:
    if fit["form"] == "line":
        return f"{fit['intercept_cycles']:.4g} + {fit['cycles_per_byte']:.4g} a byte"
    product = " and of their product" if fit["with_product"] else ""
    return f"linear trees of {fit['leaves']} leaves, logs of extents{product}"

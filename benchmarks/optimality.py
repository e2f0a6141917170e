"""How far policies are from the optimum of small random programs.

    python benchmarks/optimality.py [--small 200] [--large 20]

Programs of 4 operators with 3 plans each, and of 6 operators with 4 plans each, are solved by
branch and bound over plans, orders and places (`elk_ir.schedule.exhaustive`), in the evaluator
that the policies use and that agrees with the simulator; were one cut short, its gaps would be to
the bound that is proven. Prints a table for docs/scheduling.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from elk_ir.errors import CapacityError
from elk_ir.schedule.exhaustive import NODES, optimum, random_program
from elk_ir.schedule.model import evaluate
from elk_ir.schedule.policies import EXECUTABLE, policy


def measure(
    seeds: range, operators: int, plans: int, nodes: int
) -> tuple[dict[str, list[float]], int, float]:
    """Time over the proven bound, less 1, by policy and seed; programs solved to the end; CPU
    seconds of the branch and bound."""
    gaps: dict[str, list[float]] = {name: [] for name in EXECUTABLE}
    solved, spent = 0, 0.0
    for seed in seeds:
        program = random_program(seed, operators, plans)
        found = {}
        try:
            for name in EXECUTABLE:
                found[name] = policy(name)(program)
        except CapacityError:
            continue
        started = time.process_time()
        best = optimum(program, found["search"], nodes)
        spent += time.process_time() - started
        solved += best.bound_s == best.time_s
        for name, schedule in found.items():
            gaps[name].append(evaluate(program, schedule).time_s / best.bound_s - 1.0)
    return gaps, solved, spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", type=int, default=200, help="programs of 4 operators, 3 plans")
    parser.add_argument("--large", type=int, default=20, help="programs of 6 operators, 4 plans")
    parser.add_argument("--nodes", type=int, default=NODES, help="partial schedules looked at")
    args = parser.parse_args()
    print("| programs | policy | within 1 % | mean gap | largest gap |\n|---|---|---|---|---|")
    notes = []
    for count, operators, plans in ((args.small, 4, 3), (args.large, 6, 4)):
        gaps, solved, spent = measure(range(count), operators, plans, args.nodes)
        for name, values in gaps.items() if count else ():
            gap = np.asarray(values)
            print(
                f"| {gap.size} × ({operators} operators, {plans} plans) | {name}"
                f" | {(gap <= 0.01).mean():.1%} | {gap.mean():.2%} | {gap.max():.2%} |"
            )
        if count:
            notes.append(
                f"{solved} of {operators} operators solved to the end in {spent:.1f} CPU s"
            )
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()

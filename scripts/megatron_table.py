"""Cross-validation on the iteration times of Megatron-LM on A100 (Narayanan et al., arXiv 2104.04473, Table 1).

    python scripts/megatron_table.py [-o table.json] [--exact]

Two numbers are fitted: the sustained share of the benchmark rate of products, and of memory-bound operators. Each row
is predicted by a fit to the other nine rows (leave one out). Plans are those of the paper's own scripts (Megatron-LM,
examples/sc21/run_table_1.sh): micro-batches, interleaving, and kind of data parallelism; its code was Megatron-LM
before 3.0, without sequence parallelism, asynchronous tensor parallelism or fused accumulation.
"""

import argparse
import itertools
import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.inputs.units import PS_PER_S
from nadi.studies.planner.step import TargetMachine, step_time, target_machine
from nadi.topologies import clusters
from nadi.workload import ComputeModel
from nadi.workload.compute import ComputeTimes, SustainedShare, find_gpu
from nadi.workload.generators import models
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules


class Row(NamedTuple):
    """A row of the table, in published_figures.toml."""

    what: str  # model and number of GPUs
    # measured iteration time in seconds: operations of the paper's formula over its TFLOP/s and GPUs
    published: float
    model: str  # name of the model in the library
    plan: str  # parallel plan of the paper's script


def _rows() -> tuple[Row, ...]:
    groups = tomllib.loads(Path(__file__).with_name("published_figures.toml").read_text(encoding="utf-8"))["group"]
    (rows,) = (group["rows"] for group in groups if group["name"] == "megatron-table")
    return tuple(Row(**{key: value for key, value in row.items() if key in Row._fields}) for row in rows)


ROWS = _rows()
_SAMPLED_SHARES = ((1.0, 1.0), (0.8, 1.0), (1.0, 0.8))
"""Shares at which each row is simulated; without overlap, its time would be linear in their reciprocals."""


class Line(NamedTuple):
    """The time of a row as a function of shares: fixed_s + product_s / products + other_s / others."""

    fixed_s: float
    product_s: float
    other_s: float

    def at(self, products: float, others: float) -> float:
        """Return the time in seconds at the given shares.

        Args:
            products: The share of the peak rate that matrix products reach.
            others: The share of the memory bandwidth that other operators reach.
        """
        return self.fixed_s + self.product_s / products + self.other_s / others


def settled(row: Row) -> ParallelPlan:
    """Return the settled plan of a row."""
    return rules.settle(models.find(row.model), parallel_plan(row.plan))


def with_share(machine: TargetMachine, share: SustainedShare) -> TargetMachine:
    """Return the cluster with GPUs at another sustained share."""
    return replace(machine, compute=ComputeModel(times=ComputeTimes(find_gpu("a100"), vendor_tables=False, pace=share)))


def seconds(machine: TargetMachine, row: Row, *, exact: bool) -> float:
    """Return the step time of a row in seconds."""
    return step_time(machine, models.find(row.model), settled(row), "megatron", exact=exact).step_ps / PS_PER_S


def line(row: Row, *, exact: bool) -> Line:
    """Return how the time of a row depends on the shares; exact: simulate the whole step, without extrapolation."""
    machine = target_machine(
        clusters.find("selene"), settled(row).gpus, ComputeTimes(find_gpu("a100"), vendor_tables=False)
    )
    paces = [SustainedShare(*shares).among(settled(row).gpus) for shares in _SAMPLED_SHARES]
    times = [seconds(with_share(machine, pace), row, exact=exact) for pace in paces]
    matrix = np.array([[1, 1 / products, 1 / others] for products, others in _SAMPLED_SHARES])
    return Line(*np.linalg.solve(matrix, np.array(times)).tolist())


def fitted(lines: Sequence[Line], measured_s: Sequence[float]) -> tuple[float, float]:
    """Return the two shares with the least squares of relative errors of all rows' times, to half a percent."""
    grid: NDArray[np.float64] = np.arange(0.4, 1.001, 0.005)
    return min(
        itertools.product(grid.tolist(), grid.tolist()),
        key=lambda pair: sum((each.at(*pair) / s - 1) ** 2 for each, s in zip(lines, measured_s, strict=True)),
    )


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", metavar="FILE.json", help="file for the table as JSON")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="number of rows to use, from the first")
    parser.add_argument(
        "--exact", action="store_true", help="simulate whole steps instead of extrapolating from two short ones"
    )
    args = parser.parse_args()
    rows = ROWS[: args.rows]
    lines = []
    for row in rows:
        lines.append(line(row, exact=args.exact))
        print(f"{row.model}: {lines[-1]}", flush=True)
    measured_s = [row.published for row in rows]
    all_fitted = fitted(lines, measured_s)
    predictions = []
    for number, row in enumerate(rows):
        others = [each for other, each in enumerate(lines) if other != number]
        shares = fitted(others, [s for other, s in enumerate(measured_s) if other != number])
        predicted_s = lines[number].at(*shares)
        error = predicted_s / row.published - 1
        predictions.append(
            {"model": row.model, "measured_s": row.published, "predicted_s": predicted_s, "error": error}
        )
        print(
            f"{row.model:16s} {row.published:8.2f} s {predicted_s:8.2f} s {error:+7.1%}  "
            f"{shares[0]:.3f} {shares[1]:.3f}"
        )
    errors = [abs(prediction["error"]) for prediction in predictions]
    print(
        f"mean error {np.mean(errors):.1%}, worst {max(errors):.1%}; all rows: {all_fitted[0]:.3f} {all_fitted[1]:.3f}"
    )
    if args.out:
        table = {"rows": predictions, "products": all_fitted[0], "others": all_fitted[1]}
        Path(args.out).write_text(json.dumps(table, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()

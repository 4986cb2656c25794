"""One model on two fabrics of 64 NPUs: an 8 x 8 torus, and two levels of switches like a DGX-2's.

    python scripts/chakra_study.py --out chakra-study      a few minutes

The question is that of the early studies with Chakra traces: 62 GB/s for each link of the torus; 600 GB/s inside boxes
of 16 and 37.5 GB/s between them. The same model, by the same parallel plans: how long does a step take here and there,
and what of it is communication that nothing hides? The traces are those of `nadi run --model`. A row of the torus is 8
NPUs, a box of the switches 16, so that tensor parallelism over 8 stays in either.
"""

import argparse
import csv
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from inputs.units import PS_PER_MS
from nadi.configuration.run_file import load_config
from nadi.insight.analysis import findings
from nadi.insight.analysis.step_times import CATEGORIES
from nadi.insight.analysis.training_step import throughput
from nadi.launching.progress import NoProgress
from nadi.reports.result_files.staging import staged
from nadi.simulation.run import simulate

FABRICS = {
    "8 x 8 torus, 62 GB/s": "torus:sizes=8x8,rate=62GB/s",
    "DGX-2-like, 600 / 37.5 GB/s": "stack:dims=Switch(16)_Switch(4),rates=600GB/s_37.5GB/s,host_dims=1",
}
PLANS = ("dp64", "tp8,dp8", "tp8,sp,dp8", "tp8,pp4,dp2", "tp16,sp,dp4")
TABLE, TEXT, PAGE = "chakra-study.csv", "chakra-study.md", "chakra-study.html"


class Row(NamedTuple):
    """A step of one plan on one fabric: means over its NPUs, in milliseconds by category."""

    fabric: str
    plan: str
    step_ms: float
    mfu: float
    times_ms: dict[str, float]


def main() -> None:
    """Run the study."""
    parser = arguments()
    args = parser.parse_args()
    with refused(parser), staged(args.out, files=(TABLE, TEXT, PAGE)) as folder:
        rows = [row(args, name, plan) for plan in args.plans for name in FABRICS]
        write_table(rows, folder / TABLE)
        text = table(rows)
        (folder / TEXT).write_text(text, encoding="utf-8")
        if importlib.util.find_spec("plotly"):
            draw(rows, f"{args.model}, {args.global_batch} sequences, {args.gpu}", folder / PAGE)
    sys.stdout.write(text)


@contextmanager
def refused(parser: argparse.ArgumentParser) -> Iterator[None]:
    """The user's mistakes are one line."""
    try:
        yield
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")


def arguments() -> argparse.ArgumentParser:
    """What the user may say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table, the text and the page")
    parser.add_argument("--model", default="gpt3-1.3b", help="of `nadi workload models`")
    parser.add_argument("--plans", nargs="+", default=PLANS, help="of 64 GPUs")
    parser.add_argument("--global-batch", type=int, default=64, help="sequences of a step")
    parser.add_argument("--gpu", default="a100", help="of `nadi workload gpus`")
    parser.add_argument("--fidelity", default="closed-form", help="docs/explanation/fidelity.md")
    parser.add_argument("--set", dest="overrides", nargs="+", default=[], help="of the run file, network.mtu=1KiB")
    return parser


def row(args: argparse.Namespace, fabric: str, plan: str) -> Row:
    """Simulate one."""
    said = {
        "workload.model": args.model,
        "workload.plan": f"{plan},gb{args.global_batch}",
        "topology.spec": FABRICS[fabric],
        "network.fidelity": args.fidelity,
        "compute.gpu": args.gpu,
    }
    config = load_config(None, [*(f'{key}="{value}"' for key, value in said.items()), *args.overrides])
    done = simulate(config, NoProgress(), keep_flows=False)
    times, rates = findings.find(done).step_times, throughput(done)
    if times is None or rates is None:
        raise RuntimeError(f"{fabric}, {plan}: a run of a model has a step")
    means = dict(zip(CATEGORIES, (times.mean(axis=0) / PS_PER_MS).tolist(), strict=True))
    return Row(fabric, plan, done.results.finish_time_ps / PS_PER_MS, rates.mfu or np.nan, means)


def used(rows: Sequence[Row]) -> list[str]:
    """Categories that any row has some of."""
    return [name for name in CATEGORIES if any(each.times_ms[name] > 0 for each in rows)]


def write_table(rows: Sequence[Row], path: Path) -> None:
    """All figures as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["plan", "fabric", "step_ms", "mfu", *(f"{name}_ms" for name in CATEGORIES)])
        for each in rows:
            out.writerow([each.plan, each.fabric, each.step_ms, each.mfu, *each.times_ms.values()])


def table(rows: Sequence[Row]) -> str:
    """All figures in Markdown."""
    names = used(rows)
    lines = [f"| plan | fabric | step (ms) | MFU | {' | '.join(names)} |", f"|{' --- |' * (4 + len(names))}"]
    for each in rows:
        figures = " | ".join(f"{each.times_ms[name]:.1f}" for name in names)
        lines.append(f"| {each.plan} | {each.fabric} | {each.step_ms:.1f} | {each.mfu:.1%} | {figures} |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Stacked bars: a pair for each plan."""
    import plotly.graph_objects as go  # noqa: PLC0415 - may not be installed

    places = [[each.plan for each in rows], [each.fabric for each in rows]]
    figure = go.Figure([go.Bar(name=name, x=places, y=[each.times_ms[name] for each in rows]) for name in used(rows)])
    figure.update_layout(barmode="stack", title=f"A step of {title}", yaxis_title="mean NPU (ms)")
    figure.write_html(path, include_plotlyjs=True)


if __name__ == "__main__":
    main()

"""Figures that others measured or published, beside what Nadi says: docs/explanation/validation.md.

    python scripts/validation.py                  run the groups that take seconds, keep recorded values of the others
    python scripts/validation.py --all            run all groups, 580 s of CPU time; resumes after an interruption
    python scripts/validation.py GROUP ...        run these groups only

scripts/published_figures.toml has the figures. scripts/validation.json records the results with their date and a hash
of the code that produced them, and the page is generated from both. They are written after every group. `--all` skips
groups that the same code has already run, so that it resumes where it was interrupted. tests/docs/test_validation.py
runs the quickest groups again and compares the page with the file. To add a figure, add a row to a group; a new group
whose rows are neither training steps nor sizes of `nadi collective` needs a function in `_RUNS`.
"""

import argparse
import contextlib
import datetime as dt
import io
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import nccl_tables

import nadi
from nadi import et
from nadi.cli.main import main as run_command
from nadi.launching.installation import source_hash
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, Efficiencies, find_gpu, nvidia, parse_operators
from nadi.workload.compute.times import roofline_ps
from nadi.workload.generators.memory.states import states_of
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules

HERE = Path(__file__).parent
PAGE, RECORDED = HERE.parent / "docs" / "explanation" / "validation.md", HERE / "validation.json"
PICTURES = HERE.parent / "docs" / "images" / "validation"
PROCESSES = 2  # groups that run at a time: each keeps about one core busy
_INTRODUCTION = """# Validation

This page compares Nadi's predictions with figures that others measured or published.

No figure was used to build the part of Nadi that predicts it, unless the section of its group mentions it. The error is
Nadi's value over the published one, less 1. *Mean* and *worst* are those of the absolute errors.

`python scripts/validation.py` generates this page and runs the quick groups again each time. `--all` also runs the
longer groups, which take 580 s of CPU time in all, two at a time, and continues after an interruption. The date is that
of the last run of each group.
"""
_REST = """
## What is not compared

- **Steps on B200**, and the steps of [the predictions](predictions.md) that are in no group above: they were predicted
  before any measurement was looked up, and have not been compared with measurements yet.
- **Tails of completion times** of real fabrics under congestion: controls are compared with their papers' figures and
  with naive models ([the fabric](fabric.md#tests)), not with counters of real switches.
- **Serving**: [predicted before any figure was read](inference.md#predictions-made-before-figures-were-read).
- **Trends**, if a paper names the best plan but gives no number: [here](studies.md), with what differs
  and why.
"""


class Group(NamedTuple):
    """Figures of one source that one command reproduces: a group of published_figures.toml."""

    name: str  # on the command line and in validation.json
    title: str
    source: str  # publication or data set of the figures
    unit: str  # of all figures
    command: str  # reproduces Nadi's values
    takes: str  # run time: "moments" (tests run it), "seconds" or "minutes" (with --all only)
    rows: list[dict[str, Any]]  # name (`what`) and `published` value of each figure, `first` prediction, and inputs
    remark: str = ""  # assumptions, and parameters that were fitted
    cluster: str = ""  # of training steps, where a row has none; "" = the rows are no training steps
    framework: rules.Framework = "megatron"  # of training steps
    first_when: str = ""  # commit of the first predictions; "" = they were not kept
    # tables of NVIDIA's package (nccl_tables): system, machine and number of GPUs of each; their rows come from there
    tables: tuple[nccl_tables.NcclTable, ...] = ()
    is_read: bool = True  # whether somebody has read the measured values of the tables

    def run(self) -> list[float]:
        """Return Nadi's values in the order of the group's rows."""
        if self.tables:
            return [us for table in self.tables for us in table.predicted_us()]
        if self.cluster:
            return [_step_s(row, row.get("cluster", self.cluster), self.framework) for row in self.rows]
        if self.name in _RUNS:
            return _RUNS[self.name](self)
        return _collectives(self)


def _collectives(group: Group) -> list[float]:
    """Return the time in microseconds, or the algorithm bandwidth in GB/s, of each size of a `nadi collective`."""
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        code = run_command([*shlex.split(group.command)[1:], "--json", "-q"])
    if code:
        raise SystemExit(f"{group.command}: exit code {code}")
    rows = json.loads(stdout.getvalue())["rows"]
    return [row["algbw_Bps"] / 1e9 if group.unit == "GB/s" else row["time_ps"] / 1e6 for row in rows]


def _script(group: Group) -> Any:  # noqa: ANN401 - the JSON of any script
    """Run the group's command, a script of this folder, and return its JSON output."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, *shlex.split(group.command)[1:], "-o", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent)  # noqa: S603 - ours
        return json.loads(out.read_text(encoding="utf-8"))


def _megatron_table(group: Group) -> list[float]:
    return [row["predicted_s"] for row in _script(group)["rows"]]


def _megatron_plans(group: Group) -> list[float]:
    return [case["tflops"] for cases in _script(group).values() for case in cases]


def _operators(_: Group) -> list[float]:
    """Return the TFLOP/s of each operator of the group by the roofline."""

    def tflops(gpu: str, text: str) -> float:
        (operator,) = parse_operators(text)
        return operator.flops / roofline_ps(operator, find_gpu(gpu), Efficiencies())

    def attention(gpu: str, dim: int, kind: str = "attention", *, causal: int = 0) -> float:
        heads = 2048 // dim
        return tflops(gpu, f"{kind} 1x{heads}x{heads}x16384x16384x{dim}x{dim}x{causal} bf16")

    return [
        tflops("h100", "gemm 4224x2048x8192 bf16"),
        attention("a100", 64),
        *(attention("h100", dim) for dim in (64, 128, 256)),
        attention("h100", 128, causal=1),
        *(attention("h100", dim, "attention-backward") for dim in (64, 128)),
    ]


def _zero(_: Group) -> list[float]:
    """Return the memory of model states in GB for each ZeRO stage."""
    plans = [parallel_plan(f"dp64,zero{zero},grad_dtype=fp16,dtype=fp16") for zero in range(4)]
    return [states_of(7_500_000_000, 64, plan).total / 1e9 for plan in plans]


def _ns3(_: Group) -> list[float]:
    """Return the times of an all-reduce of 16 KiB to 16 MiB, first on a ring and then on a switch, in microseconds."""
    return [_ns3_us(fabric, 1 << exponent) for fabric in ("ring", "switch") for exponent in range(14, 25, 2)]


def _ns3_us(topology_name: str, size_bytes: int) -> float:
    """Return the us of an all-reduce as ASTRA-sim sends it over ns-3 (docs/explanation/fidelity.md: the keys)."""
    with tempfile.TemporaryDirectory() as folder:
        node = et.coll_node(1, "all-reduce", et.CollectiveCommType.ALL_REDUCE, size_bytes)
        et.write_trace(Path(folder) / "trace.et", et.metadata(), [node])
        run = nadi.simulate(
            workload={"traces": f"{folder}/trace.et"},
            topology={"spec": f"{topology_name}:npus=8,rate=400Gbps,delay=500ns"},
            system={"collectives": {"all-reduce": "ring"}, "dataset_splits": 4},
            network={
                "mtu": 1000,
                "header": "48B",
                "ack": "60B",
                "endpoint_delay": "10ns",
                "reduction_bandwidth": "1600GB/s",
                "acknowledged": True,
            },
        )
        return run.finish_time_ps / 1e6


def _step_s(row: Mapping[str, Any], cluster_name: str, framework: rules.Framework = "megatron") -> float:
    """Return the seconds of a training step."""
    # row: `model` of the library, `changes` of its keys, and parallel `plan` as text.
    model, cluster = find(row["model"]).model_copy(update=row.get("changes", {})), clusters.find(cluster_name)
    plan = rules.settle(model, parallel_plan(row["plan"]), framework)
    rules.check(model, plan, framework)
    machine = target_machine(
        cluster, plan.gpus, ComputeTimes(find_gpu(cluster.gpu), pace=IN_STEPS.among(plan.gpus), vendor_tables=False)
    )
    return step_time(machine, model, plan, framework).step_ps / 1e12


def _layers(group: Group) -> list[float]:
    """Return the milliseconds of a layer's forward and backward pass, from steps with more layers and micro-batches."""

    def step_s(layers: int, micro_batches: int, options: str) -> float:
        plan = f"tp8,mb4,gb{4 * micro_batches},attention=unfused,dtype=fp16,grad_dtype=fp16{options}"
        row = {"model": "megatron-18.4b", "changes": {"layers": layers, "heads": 64}, "plan": plan}
        return _step_s(row, "selene")

    def micro_batch_s(layers: int, options: str) -> float:
        return step_s(layers, 2, options) - step_s(layers, 1, options)

    return [1e3 * (micro_batch_s(3, row["options"]) - micro_batch_s(2, row["options"])) for row in group.rows]


def _kernel_tables(group: Group) -> list[float]:
    """Return 1 + the mean absolute error of the roofline for each row of the group: a GPU and class of operators."""
    found = {f"{gpu}, {title}": 1 + error for gpu, title, _, _, error, _ in _script(group)}
    return [found[row["what"]] for row in group.rows]


_RUNS: dict[str, Callable[[Group], list[float]]] = {
    "megatron-table": _megatron_table,
    "megatron-plans": _megatron_plans,
    "layer-a100": _layers,
    "ns-3": _ns3,
    "operators": _operators,
    "kernel-tables": _kernel_tables,
    "zero": _zero,
}
"""Functions that return Nadi's values of groups whose rows are neither training steps nor sizes of a collective."""


def _groups() -> Iterator[Group]:
    """Yield the groups of published_figures.toml; the rows of NVIDIA's tables are those recorded."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    for group in tomllib.loads((HERE / "published_figures.toml").read_text(encoding="utf-8"))["group"]:
        tables = tuple(nccl_tables.NcclTable(*table) for table in group.pop("tables", ()))
        published = recorded.get(group["name"], {}).get("published", [])
        names = [name for table in tables for name in nccl_tables.names(table)]
        if tables:
            group["rows"] = [{"what": what, "published": us} for what, us in zip(names, published, strict=False)]
        yield Group(**group, tables=tables)


GROUPS = tuple(_groups())


def errors_of(group: Group, values: Sequence[float]) -> list[float]:
    """Return the signed relative errors in the order of the figures.

    Args:
        group: The published figures of one comparison.
        values: The predicted values in the order of the figures.
    """
    return [value / row["published"] - 1 for row, value in zip(group.rows, values, strict=not group.tables)]


def page(recorded_by_group: dict[str, Any]) -> str:
    """Return docs/explanation/validation.md with the values recorded for each group.

    Args:
        recorded_by_group: The recorded results by the name of their group.
    """
    parts = [_INTRODUCTION, "| group | figures | mean | worst | run |\n| --- | --- | --- | --- | --- |"]
    for group in GROUPS:
        absolute = [abs(error) for error in errors_of(group, recorded_by_group[group.name]["values"])] or [math.nan]
        mean = sum(absolute) / len(absolute)
        date = recorded_by_group[group.name]["date"]
        parts.append(
            f"| [{group.title}](#{group.name}) | {len(absolute)} | {mean:.1%} | {max(absolute):.1%} | {date} |"
        )
    parts.extend(_section(group, recorded_by_group[group.name]["values"]) for group in GROUPS)
    return "\n".join(parts) + _REST


def _section(group: Group, values: Sequence[float]) -> str:
    """Return the section of a group with Nadi's values; groups with first predictions have two more columns."""
    if group.tables:
        return _tables_section(group, values)
    first = [row["first"] for row in group.rows] if group.first_when else []
    first_heading = f" predicted at {group.first_when} | first error |" if first else ""
    lines = [
        f'\n<a id="{group.name}"></a>\n',
        f"## {group.title}\n",
        f"Published: {group.source}. {group.remark}".rstrip() + "\n",
        f"    {group.command}\n",
        _picture(group),
        f"| | published ({group.unit}) |{first_heading} Nadi ({group.unit}) | error |",
        f"| --- | --- |{' --- | --- |' if first else ''} --- | --- |",
    ]
    errors = errors_of(group, values)
    first_cells = [""] * len(values)
    if first:
        first_errors = errors_of(group, first)
        first_cells = [f" {_shown(each)} | {error:+.1%} |" for each, error in zip(first, first_errors, strict=True)]
    lines.extend(
        f"| {row['what']} | {_shown(row['published'])} |{cells} {_shown(value)} | {error:+.1%} |"
        for row, cells, value, error in zip(group.rows, first_cells, values, errors, strict=True)
    )
    if first:
        first_mean, mean = (sum(map(abs, each)) / len(each) for each in (first_errors, errors))
        lines.append(f"| mean absolute error | | | {first_mean:.1%} | | {mean:.1%} |")
    return "\n".join(lines)


def _tables_section(group: Group, values: Sequence[float]) -> str:
    """Return the section of a group of NVIDIA's tables, with Nadi's times in us: predicted / measured (error)."""
    lines = [f'\n<a id="{group.name}"></a>\n', f"## {group.title}\n", f"Published: {group.source}. {group.remark}\n"]
    lines += [f"    {group.command}\n", _picture(group)]
    count = len(nccl_tables.KINDS) * len(nccl_tables.SIZES)
    for number, table in enumerate(group.tables):
        rows = slice(number * count, (number + 1) * count)
        lines += nccl_tables.lines(table, values[rows], [row["published"] for row in group.rows[rows]])
    return "\n".join(lines)


def _picture(group: Group) -> str:
    """Return the Markdown of the picture that `plots` draws for a group."""
    return f"![error of each figure](../images/validation/{group.name}.svg)\n"


def plots(recorded_by_group: dict[str, Any]) -> dict[str, str]:
    """Return the picture of each group as SVG, by the group's name.

    Args:
        recorded_by_group: The recorded results by the name of their group.
    """
    pictures = {}
    for group in GROUPS:
        published = [row["published"] for row in group.rows]
        errors = errors_of(group, recorded_by_group[group.name]["values"])
        pictures[group.name] = error_plot(published, errors, group.unit)
    return pictures


def _shown(value: float) -> str:
    """Return a value with about four digits."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def wanted(group: Group, recorded: dict[str, Any], names: Sequence[str], code: str, *, everything: bool) -> bool:
    """Return whether a group is to be run by code with a hash, given the recorded results by group.

    names: those of the chosen groups; none = all quick groups, or with `everything` also those that take minutes, if
    this code has not run them yet.
    """
    if names:
        return group.name in names
    if group.name == "kernel-tables" and not nvidia.installed():
        return False
    before = recorded.get(group.name, {})
    if everything:
        return bool(before.get("code") != code)
    return group.takes != "minutes" or not before


def write(recorded_by_group: dict[str, Any], record_file: Path = RECORDED, page_file: Path = PAGE) -> None:
    """Replace the file of recorded results, and write the page once no group is missing.

    Args:
        recorded_by_group: The recorded results by the name of their group.
        record_file: The JSON file of recorded results.
        page_file: The page of the documentation.
    """
    ordered = {group.name: recorded_by_group[group.name] for group in GROUPS if group.name in recorded_by_group}
    written = record_file.with_suffix(".new")
    written.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    written.replace(record_file)
    if len(ordered) == len(GROUPS):
        page_file.write_text(page(ordered), encoding="utf-8")
        for name, picture in plots(ordered).items():
            (PICTURES / f"{name}.svg").write_text(picture, encoding="utf-8")


def _run(number: int) -> tuple[list[float], float]:
    """Return Nadi's values of a group of GROUPS, and the seconds that they took; runs in a process of its own."""
    start_s = time.perf_counter()
    return GROUPS[number].run(), time.perf_counter() - start_s


def _record(group: Group, values: list[float], recorded: dict[str, Any], code: str) -> None:
    """Put the values of a group that code with a hash has run into the recorded results by group."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    recorded[group.name] = {"date": today, "code": code, "values": values}
    if group.tables and group.is_read:
        published = [us for table in group.tables for us in table.measured_us()]
        if published != [row["published"] for row in group.rows]:
            names = [name for table in group.tables for name in nccl_tables.names(table)]
            group.rows[:] = [{"what": what, "published": us} for what, us in zip(names, published, strict=True)]
    if group.tables:
        recorded[group.name]["published"] = [row["published"] for row in group.rows]


def main() -> None:
    """Run the chosen groups, record their results, write the page, and print which groups were not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(group.name for group in GROUPS))
    parser.add_argument(
        "--all", action="store_true", help="also run groups that take minutes, unless this code has already run them"
    )
    args = parser.parse_args()
    unknown = sorted(set(args.groups) - {group.name for group in GROUPS})
    if unknown:
        parser.error(f"no group {unknown[0]}; expected {', '.join(group.name for group in GROUPS)}")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    code = source_hash()[:12]
    chosen = []
    for group in GROUPS:
        if not wanted(group, recorded, args.groups, code, everything=args.all):
            date = recorded[group.name]["date"] if group.name in recorded else "never"
            print(f"{group.name}: not run; recorded {date}")
        elif group.tables and nccl_tables.folder() is None:
            print(f"{group.name}: not run; it needs NVIDIA's tables (pip install aiconfigurator-core)")
        else:
            chosen.append(group)
    chosen.sort(key=lambda group: group.takes != "minutes")
    with ProcessPoolExecutor(PROCESSES) as pool:
        running = {pool.submit(_run, GROUPS.index(group)): group for group in chosen}
        for done in as_completed(running):
            group, (values, took_s) = running[done], done.result()
            _record(group, values, recorded, code)
            write(recorded)
            errors = [abs(error) for error in errors_of(group, values)] or [math.nan]
            mean = sum(errors) / len(errors)
            print(
                f"{group.name}: {len(errors)} figures, mean {mean:.1%}, worst {max(errors):.1%}, {took_s:.0f} s",
                flush=True,
            )
    write(recorded)


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 220, 56, 36, 12  # of a plot of errors, in pixels
_FONT, _BAND = ' font-family="sans-serif" font-size="12" fill="#666"', ' fill="#2a9d8f" fill-opacity="0.15"'
_AIM = 0.05  # error that the project wants to stay within, as a band
_SHOWN = 0.98  # fraction of the errors that the vertical axis must hold, so that an outlier does not set it
_SCALES = (0.1, 0.2, 0.5, 1.0, 2.0)  # maximum errors that the vertical axis shows


def error_plot(published: Sequence[float], errors: Sequence[float], unit: str) -> str:
    """Return the SVG text of a plot: a point for each figure, on a logarithmic axis of the published values.

    Args:
        published: Published values in `unit`, above 0.
        errors: Relative error of each prediction; those beyond the axis are drawn at its end.
        unit: Unit of the published values, for the axis.
    """
    most = sorted(map(abs, errors))[int(_SHOWN * (len(errors) - 1))]
    scale = next((limit for limit in _SCALES if most <= limit), _SCALES[-1])
    first = math.floor(math.log10(min(published)))
    decades = max(1, math.ceil(math.log10(max(published))) - first)
    right, low = _WIDTH - 30, _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - first) / decades * (right - _LEFT)

    def y(error: float) -> float:
        return _TOP + (1 - max(-1.0, min(1.0, error / scale))) / 2 * (low - _TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"{_FONT}>',
        f'<rect x="{_LEFT}" y="{y(_AIM):.1f}" width="{right - _LEFT}" height="{y(-_AIM) - y(_AIM):.1f}"{_BAND}/>',
    ]
    for error in (-scale, -scale / 2, 0.0, scale / 2, scale):
        parts.append(f'<path d="M{_LEFT} {y(error):.1f}H{right}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(error) + 4:.1f}" text-anchor="end">{error:+.0%}</text>')
    for exponent in range(first, first + decades + 1):
        at = x(10.0**exponent)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{low}" stroke="#999" stroke-width="0.5"/>')
        parts.append(f'<text x="{at:.1f}" y="{low + 16}" text-anchor="middle">{10.0**exponent:,g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 4}">published ({unit}); upwards: error of the prediction</text>')
    parts.extend(
        f'<circle cx="{x(value):.1f}" cy="{y(error):.1f}" r="3" fill="#1d6fb8" fill-opacity="0.7"/>'
        for value, error in zip(published, errors, strict=True)
    )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main()

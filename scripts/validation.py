"""Figures that others measured or published, beside what Nadi says: docs/validation.md.

    python scripts/validation.py                  run what takes seconds, keep what was recorded of the rest
    python scripts/validation.py --all            run everything, a quarter of an hour; again = go on where it ended
    python scripts/validation.py GROUP ...        run these groups only

What came out stands in scripts/validation.json, with its date and a hash of the code that told it, and the page is made
of that. Both files are written after every group. `--all` leaves out the groups that the same code has told already,
so that it goes on where it was interrupted.
tests/docs/test_validation.py runs the quickest groups again and holds the page to the file. A further figure is a row
of a group below.
"""

import argparse
import contextlib
import datetime as dt
import hashlib
import io
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import et
import nadi
from nadi.cli import main as run_command
from workload.compute import Efficiencies, find_gpu, parse_operators
from workload.compute.roofline import roofline_ps
from workload.memory.states import states_of
from workload.training import parallel_plan

HERE = Path(__file__).parent
CODE = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")
"""Folders whose files tell the figures."""
PAGE, RECORDED = HERE.parent / "docs" / "validation.md", HERE / "validation.json"
_ONE_HOST = "rail-optimised:npus=8,gpus_per_host=8,nvlink_rate=2400Gbps,nvlink_delay=20ns"
_TWO_HOSTS = "rail-optimised:npus=16,gpus_per_host=8,rate=200Gbps,delay=500ns,nvlink_rate=2400Gbps,nvlink_delay=20ns"
_INTRODUCTION = """# Validation

For people who ask how far off the numbers are.

Every figure here was measured or published by somebody else, and none was used to make the part of Nadi that tells it,
unless a group says so. The error is Nadi's value over the published one, less 1. *Mean* and *worst* are of the errors'
sizes.

This page is made by `python scripts/validation.py`, which runs the quick groups again each time. Groups that take
longer are run with `--all`, which takes a quarter of an hour in all and goes on where it was interrupted. The date says
when each group was last run.
"""
_REST = """
## What is not compared

- **Steps on H100 and B200.** [Predictions](predictions.md) were written down before anything was looked up; nobody has
  yet held them to measurements.
- **Tails of completion times** of real fabrics under congestion: controls are compared with their papers' figures and
  with naive models ([the fabric](fabric.md#how-it-is-checked)), not with counters of real switches.
- **Serving**: [told before anything was looked up](inference.md#predicted-before-anything-was-looked-up).
- **Trends**, where a paper says which plan is best but gives no number: [here](megatron-trends.md), with what differs
  and why.
"""


class Figure(NamedTuple):
    """A published figure: what of, and its value in the group's unit."""

    what: str
    published: float


class Group(NamedTuple):
    """Figures of one source that one command tells.

    Attributes:
        name: on the command line and in the file.
        title: of the section.
        source: who published them.
        remark: what was assumed or fitted.
        unit: of all figures.
        figures: the published ones.
        command: with which a reader gets the same.
        run: Nadi's values, in the order of the figures.
        takes: "moments" (tests run it), "seconds" or "minutes" (with --all only).
    """

    name: str
    title: str
    source: str
    remark: str
    unit: str
    figures: tuple[Figure, ...]
    command: str
    run: Callable[[], list[float]]
    takes: str


def _collectives(command: str, sizes: Sequence[str], scale: Callable[[dict[str, Any]], float]) -> list[float]:
    """A value of each row of `nadi collective`, run in this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = run_command([*shlex.split(command)[1:], "--sizes", ",".join(sizes), "--json", "-q"])
    if code:
        raise SystemExit(f"{command}: exit code {code}")
    return [scale(row) for row in json.loads(said.getvalue())["rows"]]


def _microseconds(row: dict[str, Any]) -> float:
    return float(row["time_ps"]) / 1e6


_NCCL_ONE = f"nadi collective all-reduce -t {_ONE_HOST} --set network.nvlink_framing=true"
_NCCL_TWO = f"nadi collective all-reduce -t {_TWO_HOSTS} --set network.nvlink_framing=true"
_SIZES_ONE = ("64MiB", "128MiB", "256MiB", "512MiB", "1GiB")
_SIZES_MORE = ("2GiB", "4GiB", "10GiB")
_SIZES_TWO = ("1GiB", "2GiB", "4GiB", "10GiB")


def _script(name: str) -> dict[str, Any]:
    """The JSON that a script of this folder writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run([sys.executable, HERE / name, "-o", out], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def _megatron_table() -> list[float]:
    return [row["predicted_s"] for row in _script("megatron_table.py")["rows"]]


def _megatron_plans() -> list[float]:
    found = _script("megatron_trends.py")
    return [case["tflops"] for name in ("ptd-p", "zero3") for case in found[name]]


def _operators() -> list[float]:
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


def _zero() -> list[float]:
    plans = [parallel_plan(f"dp64,zero{zero},grad_dtype=fp16,dtype=fp16") for zero in range(4)]
    return [states_of(7_500_000_000, 64, plan).total / 1e9 for plan in plans]


_NS3_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_NS3_PUBLISHED_US = {
    "ring": (57.272, 59.204, 66.764, 96.864, 217.628, 700.684),
    "switch": (113.944, 116.436, 123.996, 154.096, 279.564, 784.628),
}


def _ns3() -> list[float]:
    return [_ns3_us(fabric, size) for fabric in _NS3_PUBLISHED_US for size in _NS3_SIZES]


def _ns3_us(fabric: str, size: int) -> float:
    """An all-reduce as ASTRA-sim sends it over ns-3: docs/fidelity.md says what each key stands for."""
    with tempfile.TemporaryDirectory() as folder:
        node = et.coll_node(1, "all-reduce", et.CollectiveCommType.ALL_REDUCE, size)
        et.write_trace(Path(folder) / "trace.et", et.metadata(), [node])
        run = nadi.simulate(
            workload={"traces": f"{folder}/trace.et"},
            topology={"spec": f"{fabric}:npus=8,rate=400Gbps,delay=500ns"},
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


GROUPS = (
    Group(
        "megatron-table",
        "Training steps: ten models on 32 to 3,072 A100",
        "Narayanan et al., arXiv 2104.04473, table 1",
        "Two numbers, the pace of products and of all other operators, are fitted to nine rows, and tell the tenth.",
        "s",
        (
            Figure("1.7 B on 32 GPUs", 3.53),
            Figure("3.6 B on 64", 3.70),
            Figure("7.5 B on 128", 3.70),
            Figure("18.4 B on 256", 9.40),
            Figure("39.1 B on 512", 14.45),
            Figure("76.1 B on 1,024", 16.06),
            Figure("145.6 B on 1,536", 24.82),
            Figure("310.1 B on 1,920", 37.61),
            Figure("529.6 B on 2,520", 54.08),
            Figure("1,008 B on 3,072", 102.63),
        ),
        "python scripts/megatron_table.py",
        _megatron_table,
        "minutes",
    ),
    Group(
        "megatron-plans",
        "Training steps: 174.6 B by PTD-P and by ZeRO-3",
        "Narayanan et al., arXiv 2104.04473, table 2",
        "TFLOP/s of a GPU. PTD-P with TP8 PP12, which the paper does not say; ZeRO-3 as DeepSpeed gathered in 2021. "
        "What is missing there [is said](megatron-trends.md).",
        "TFLOP/s",
        (
            Figure("PTD-P on 384 GPUs", 153),
            Figure("PTD-P on 768", 149),
            Figure("PTD-P on 1,536", 141),
            Figure("ZeRO-3 on 384", 144),
            Figure("ZeRO-3 on 768", 88),
            Figure("ZeRO-3 on 1,536", 44),
        ),
        "python scripts/megatron_trends.py ptd-p zero3",
        _megatron_plans,
        "minutes",
    ),
    Group(
        "nccl-one-host",
        "All-reduce of NCCL in one host of 8 A100, by packets",
        "nccl-tests of Oracle Japan's tutorial, BM.GPU4.8, CUDA 11.3",
        "Nothing is fitted: NCCL's constants, NVLink's flits. At 128 MiB the published time is 8 % above the line "
        "through its neighbours.",
        "µs",
        tuple(map(Figure, _SIZES_ONE, (589.5, 1191.0, 2122.0, 4208.0, 8167.0))),
        f"{_NCCL_ONE} --sizes {','.join(_SIZES_ONE)}",
        lambda: _collectives(_NCCL_ONE, _SIZES_ONE, _microseconds),
        "seconds",
    ),
    Group(
        "nccl-one-host-large",
        "The same, larger buffers",
        "as above",
        "",
        "µs",
        tuple(map(Figure, _SIZES_MORE, (16232.0, 32097.0, 79751.0))),
        f"{_NCCL_ONE} --sizes {','.join(_SIZES_MORE)}",
        lambda: _collectives(_NCCL_ONE, _SIZES_MORE, _microseconds),
        "minutes",
    ),
    Group(
        "nccl-two-hosts",
        "All-reduce of NCCL on two hosts of 8 A100, RoCE, by packets",
        "nccl-tests on OCI BM.GPU4.8, two NICs of 100 Gb/s for each GPU",
        "Nothing is fitted.",
        "µs",
        tuple(map(Figure, _SIZES_TWO, (10776.0, 21287.0, 42381.0, 105287.0))),
        f"{_NCCL_TWO} --sizes {','.join(_SIZES_TWO)}",
        lambda: _collectives(_NCCL_TWO, _SIZES_TWO, _microseconds),
        "minutes",
    ),
    Group(
        "nccl-hopper",
        "All-reduce of NCCL on 8 H100, by packets",
        'a user in nccl-tests issue 212 ("about 250")',
        "Told before it was looked up. GB/s of the buffer.",
        "GB/s",
        (Figure("256 MiB", 250.0),),
        "nadi collective all-reduce -t dgx-h100:npus=8 --sizes 256MiB",
        lambda: _collectives(
            "nadi collective all-reduce -t dgx-h100:npus=8", ("256MiB",), lambda row: float(row["algbw_Bps"]) / 1e9
        ),
        "seconds",
    ),
    Group(
        "ns-3",
        "All-reduce of ASTRA-sim over ns-3, by packets",
        "K. Redd, github.com/kredd2506/Astro, experiments/results/ns3.csv at 125e187",
        "8 NPUs, 400 Gb/s. Nothing is fitted; keys of the run file follow that configuration.",
        "µs",
        tuple(
            Figure(f"{fabric}, {size >> 10:,} KiB", published)
            for fabric, times in _NS3_PUBLISHED_US.items()
            for size, published in zip(_NS3_SIZES, times, strict=True)
        ),
        "python scripts/validation.py ns-3",
        _ns3,
        "seconds",
    ),
    Group(
        "operators",
        "Products and attention on one GPU",
        'H. He, "H100 peak matmul FLOPS"; charts of FlashAttention-2 (arXiv 2307.08691) and -3 (arXiv 2407.08608)',
        "None of these was fitted; two mechanisms of attention were added after figures of H100 were too far off.",
        "TFLOP/s",
        (
            Figure("H100, product 4224x2048x8192, bf16", 780.2),
            Figure("A100, attention of 16k tokens, heads of 64", 190),
            Figure("H100, the same", 497),
            Figure("H100, heads of 128", 648),
            Figure("H100, heads of 256", 756),
            Figure("H100, heads of 128, causal", 616),
            Figure("H100, backward, heads of 64", 474),
            Figure("H100, backward, heads of 128", 561),
        ),
        "python scripts/validation.py operators",
        _operators,
        "moments",
    ),
    Group(
        "zero",
        "Memory of parameters, gradients and optimizer by ZeRO stage",
        "Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 B parameters on 64 GPUs",
        "",
        "GB",
        tuple(Figure(f"stage {stage}", published) for stage, published in enumerate((120, 31.4, 16.6, 1.9))),
        "python scripts/validation.py zero",
        _zero,
        "moments",
    ),
)


def errors_of(group: Group, values: Sequence[float]) -> list[float]:
    """Relative errors, signed."""
    return [value / figure.published - 1 for figure, value in zip(group.figures, values, strict=True)]


def page(recorded: dict[str, Any]) -> str:
    """docs/validation.md, of what was recorded."""
    parts = [_INTRODUCTION, "| what | figures | mean | worst | run |\n| --- | --- | --- | --- | --- |"]
    for group in GROUPS:
        sizes = [abs(error) for error in errors_of(group, recorded[group.name]["values"])]
        mean = sum(sizes) / len(sizes)
        date = recorded[group.name]["date"]
        parts.append(f"| [{group.title}](#{group.name}) | {len(sizes)} | {mean:.1%} | {max(sizes):.1%} | {date} |")
    parts.extend(_section(group, recorded[group.name]["values"]) for group in GROUPS)
    return "\n".join(parts) + _REST


def _section(group: Group, values: Sequence[float]) -> str:
    lines = [
        f'\n<a id="{group.name}"></a>\n',
        f"## {group.title}\n",
        f"Published: {group.source}. {group.remark}".rstrip() + "\n",
        f"    {group.command}\n",
        f"| | published ({group.unit}) | Nadi ({group.unit}) | error |",
        "| --- | --- | --- | --- |",
    ]
    lines.extend(
        f"| {figure.what} | {_shown(figure.published)} | {_shown(value)} | {error:+.1%} |"
        for figure, value, error in zip(group.figures, values, errors_of(group, values), strict=True)
    )
    return "\n".join(lines)


def _shown(value: float) -> str:
    """Four digits or so."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def code_hash(root: Path) -> str:
    """Of the paths and bytes of all code and tables below a folder."""
    found = hashlib.sha256()
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                found.update(f"{path.relative_to(root)} {len(content)} ".encode() + content)
    return found.hexdigest()[:12]


def wanted(group: Group, recorded: dict[str, Any], names: Sequence[str], code: str, *, everything: bool) -> bool:
    """Whether a group is to be run.

    Args:
        group: which.
        recorded: what came out before, by group.
        names: of groups; none = all that are quick, or with everything those that this code has not told yet.
        code: hash of the code.
        everything: also what takes minutes.
    """
    if names:
        return group.name in names
    before = recorded.get(group.name, {})
    if everything:
        return bool(before.get("code") != code)
    return group.takes != "minutes" or not before


def write(recorded: dict[str, Any], record: Path = RECORDED, made: Path = PAGE) -> None:
    """The file, by a new one in its place; and the page, once no group is missing."""
    ordered = {group.name: recorded[group.name] for group in GROUPS if group.name in recorded}
    written = record.with_suffix(".new")
    written.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    written.replace(record)
    if len(ordered) == len(GROUPS):
        made.write_text(page(ordered), encoding="utf-8")


def main() -> None:
    """Run what is asked for, record it, write the page, and say what was not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(group.name for group in GROUPS))
    parser.add_argument("--all", action="store_true", help="those that take minutes, too, unless this code told them")
    given = parser.parse_args()
    unknown = sorted(set(given.groups) - {group.name for group in GROUPS})
    if unknown:
        parser.error(f"no group {unknown[0]}; expected {', '.join(group.name for group in GROUPS)}")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    code = code_hash(HERE.parent)
    for group in GROUPS:
        if not wanted(group, recorded, given.groups, code, everything=given.all):
            date = recorded[group.name]["date"] if group.name in recorded else "never"
            print(f"{group.name}: not run; recorded {date}")
            continue
        began = time.perf_counter()
        values = group.run()
        today = dt.datetime.now(tz=dt.UTC).date().isoformat()
        recorded[group.name] = {"date": today, "code": code, "values": values}
        write(recorded)
        errors = [abs(error) for error in errors_of(group, values)]
        mean, took_s = sum(errors) / len(errors), time.perf_counter() - began
        print(
            f"{group.name}: {len(errors)} figures, mean {mean:.1%}, worst {max(errors):.1%}, {took_s:.0f} s", flush=True
        )
    write(recorded)


if __name__ == "__main__":
    main()

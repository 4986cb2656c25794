"""Figures that others measured or published, beside what Nadi says: docs/explanation/validation.md.

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
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import et
import nadi
from nadi.cli.main import main as run_command
from nadi.studies.planner.step import site, step_time
from topologies import clusters
from workload.compute import IN_STEPS, ComputeTimes, Efficiencies, find_gpu, parse_operators
from workload.compute.roofline import roofline_ps
from workload.generators.memory.states import states_of
from workload.generators.models import find
from workload.generators.training import parallel_plan, rules

HERE = Path(__file__).parent
CODE = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")
"""Folders whose files tell the figures."""
PAGE, RECORDED = HERE.parent / "docs" / "explanation" / "validation.md", HERE / "validation.json"
STEPS = tomllib.loads((HERE / "published_steps.toml").read_text(encoding="utf-8"))
"""Published training steps by group: facts, and what Nadi first predicted."""
_ONE_HOST = "rail-optimised:npus=8,gpus_per_host=8,nvlink_rate=2400Gbps,nvlink_delay=20ns"
_TWO_HOSTS = "rail-optimised:npus=16,gpus_per_host=8,rate=200Gbps,delay=500ns,nvlink_rate=2400Gbps,nvlink_delay=20ns"
_INTRODUCTION = """# Validation

This page compares Nadi's predictions with figures that others measured or published.

No figure was used to build the part of Nadi that predicts it, unless the section of its group mentions it. The error is
Nadi's value over the published one, less 1. *Mean* and *worst* are those of the absolute errors.

`python scripts/validation.py` generates this page and runs the quick groups again each time. `--all` also runs the
longer groups; this takes a quarter of an hour in all, and continues after an interruption. The date is that of the last
run of each group.
"""
_REST = """
## What is not compared

- **Steps on B200**, and those of [the predictions](predictions.md) that no group above has: they were written down
  before anything was looked up, and nobody has yet held them to measurements.
- **Tails of completion times** of real fabrics under congestion: controls are compared with their papers' figures and
  with naive models ([the fabric](fabric.md#tests)), not with counters of real switches.
- **Serving**: [predicted before any figure was read](inference.md#predictions-made-before-figures-were-read).
- **Trends**, if a paper names the best plan but gives no number: [here](studies.md), with what differs
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
        first: Nadi's values when the figures were first predicted, in their order; () = not kept.
        first_when: by which commit that was.
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
    first: tuple[float, ...] = ()
    first_when: str = ""


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
    """An all-reduce as ASTRA-sim sends it over ns-3: docs/explanation/fidelity.md says what each key stands for."""
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


def _steps(group: str) -> list[float]:
    """Return the seconds of each step of a group of STEPS, at closed forms."""
    return [
        _step_s(row["model"], row.get("changes", {}), row["plan"], STEPS[group]["cluster"])
        for row in STEPS[group]["rows"]
    ]


def _step_s(name: str, changes: dict[str, Any], text: str, cluster_name: str) -> float:
    """Return the seconds of a training step of Megatron.

    Args:
        name: Name of a model of the library.
        changes: Keys of the model that have other values.
        text: Parallel plan.
        cluster_name: Name of the cluster.
    """
    model, cluster = find(name).model_copy(update=changes), clusters.find(cluster_name)
    plan = rules.settle(model, parallel_plan(text))
    rules.check(model, plan)
    where = site(cluster, plan.gpus, ComputeTimes(find_gpu(cluster.gpu), pace=IN_STEPS))
    return step_time(where, model, plan, "megatron").step_ps / 1e12


def _figures(group: str) -> tuple[Figure, ...]:
    return tuple(Figure(row["what"], row["published_s"]) for row in STEPS[group]["rows"])


_LAYERS = {
    "nothing worked out again": ("", 19.6),
    "sequence parallelism": (",sp", 19.0),
    "full recomputation": (",recompute=full", 27.2),
    "selective recomputation": (",recompute=selective", 20.9),
    "selective recomputation, sequence parallelism": (",sp,recompute=selective", 20.3),
}
"""Of a layer of the 22 B model: the words of its plan, and its published milliseconds."""


def _layers() -> list[float]:
    """Return the milliseconds of a layer's forward and backward pass, from steps with more layers and micro-batches."""

    def step_s(layers: int, micro_batches: int, words: str) -> float:
        plan = f"tp8,mb4,gb{4 * micro_batches},attention=unfused,dtype=fp16,grad_dtype=fp16{words}"
        return _step_s("megatron-18.4b", {"layers": layers, "heads": 64}, plan, "selene")

    def of_a_micro_batch_s(layers: int, words: str) -> float:
        return step_s(layers, 2, words) - step_s(layers, 1, words)

    return [1e3 * (of_a_micro_batch_s(3, words) - of_a_micro_batch_s(2, words)) for words, _ in _LAYERS.values()]


GROUPS = (
    Group(
        "megatron-table",
        "Training steps: ten models on 32 to 3,072 A100",
        "Narayanan et al., arXiv 2104.04473, table 1",
        "Two numbers, the pace of products and of all other operators, are fitted to nine rows, and predict the tenth.",
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
        "TFLOP/s of a GPU. PTD-P with TP8 PP12, an assumption; ZeRO-3 as DeepSpeed gathered in 2021. "
        "[Studies](studies.md) describes the missing effects.",
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
        "nvidia-h100",
        "Training steps: NVIDIA's 26 dense recipes on 8 to 2,048 H100",
        "NVIDIA/dgxc-benchmarking (Apache-2.0), README of release 25.04.01",
        "Predicted at commit 51b013e (2026-11-23), when nobody of the project had read the figures. The table has that "
        "prediction and what the code predicts now. Nothing is fitted to these runs: mechanisms that were missing have "
        "been added since ([which](compute.md#what-published-steps-showed)), and the pace is still fitted to the ten "
        "rows of the first group alone. Plans with a pipeline have the deferred gradients of NVIDIA's recipes "
        "(`defer_embedding_wgrad`) since later that day.",
        "s",
        _figures("nvidia-h100"),
        "python scripts/validation.py nvidia-h100",
        lambda: _steps("nvidia-h100"),
        "minutes",
        tuple(row["first_s"] for row in STEPS["nvidia-h100"]["rows"]),
        "51b013e",
    ),
    Group(
        "sequence-parallel-a100",
        "Training steps: sequence parallelism and recomputation on A100",
        "Korthikanti et al., arXiv 2205.05198, table 5 and section 6.3",
        "Three of these steps were [predicted](predictions.md) before the table was looked up: 175 B, 530 B and 1 T "
        "with sequence parallelism at 12.37, 35.19 and 70.67 s, 10.0, 7.0 and 1.2 % too fast "
        "([why](compute.md#what-published-steps-showed), and what is left). Nothing is fitted to them.",
        "s",
        _figures("sequence-parallel-a100"),
        "python scripts/validation.py sequence-parallel-a100",
        lambda: _steps("sequence-parallel-a100"),
        "minutes",
    ),
    Group(
        "layer-a100",
        "A layer of a 22 B model on 8 A100, forward and backward",
        "Korthikanti et al., arXiv 2205.05198, table 4",
        "Nothing is fitted to them.",
        "ms",
        tuple(Figure(what, published) for what, (_, published) in _LAYERS.items()),
        "python scripts/validation.py layer-a100",
        _layers,
        "seconds",
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
        "Predicted before the figure was read. GB/s of the buffer.",
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
    """Return the relative errors, signed, in the order of the figures."""
    return [value / figure.published - 1 for figure, value in zip(group.figures, values, strict=True)]


def page(recorded: dict[str, Any]) -> str:
    """docs/explanation/validation.md, of what was recorded."""
    parts = [_INTRODUCTION, "| group | figures | mean | worst | run |\n| --- | --- | --- | --- | --- |"]
    for group in GROUPS:
        sizes = [abs(error) for error in errors_of(group, recorded[group.name]["values"])]
        mean = sum(sizes) / len(sizes)
        date = recorded[group.name]["date"]
        parts.append(f"| [{group.title}](#{group.name}) | {len(sizes)} | {mean:.1%} | {max(sizes):.1%} | {date} |")
    parts.extend(_section(group, recorded[group.name]["values"]) for group in GROUPS)
    return "\n".join(parts) + _REST


def _section(group: Group, values: Sequence[float]) -> str:
    when = f" predicted at {group.first_when} | error then |" if group.first else ""
    lines = [
        f'\n<a id="{group.name}"></a>\n',
        f"## {group.title}\n",
        f"Published: {group.source}. {group.remark}".rstrip() + "\n",
        f"    {group.command}\n",
        f"| | published ({group.unit}) |{when} Nadi ({group.unit}) | error |",
        f"| --- | --- |{' --- | --- |' if group.first else ''} --- | --- |",
    ]
    errors = errors_of(group, values)
    then = _first_cells(group)
    lines.extend(
        f"| {figure.what} | {_shown(figure.published)} |{cells} {_shown(value)} | {error:+.1%} |"
        for figure, cells, value, error in zip(group.figures, then, values, errors, strict=True)
    )
    if group.first:
        lines.append(_means(group, errors))
    return "\n".join(lines)


def _first_cells(group: Group) -> list[str]:
    """Return what each row says of the first prediction, with its error."""
    if not group.first:
        return [""] * len(group.figures)
    errors = errors_of(group, group.first)
    return [f" {_shown(value)} | {error:+.1%} |" for value, error in zip(group.first, errors, strict=True)]


def _means(group: Group, errors: Sequence[float]) -> str:
    """Return the last row of a table: the means of the errors' sizes, then and now."""
    then, now = (sum(map(abs, each)) / len(each) for each in (errors_of(group, group.first), errors))
    return f"| mean of the sizes | | | {then:.1%} | | {now:.1%} |"


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

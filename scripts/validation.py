"""Figures that others measured or published, beside what Nadi says: docs/explanation/validation.md.

    python scripts/validation.py                  run the groups that take seconds, keep recorded values of the others
    python scripts/validation.py --all            run all groups, 650 s of CPU time; resumes after an interruption
    python scripts/validation.py GROUP ...        run these groups only

scripts/published_figures.toml has the figures. scripts/validation.json records the results with their date and a hash
of the code that produced them. From both come the page, the table of the README, and nadi/validation/errors.json, from
which answers take the errors of their class. They are written after every group. `--all` skips
groups that the same code has already run, so that it resumes where it was interrupted. tests/docs/test_validation.py
runs the quickest groups again and compares the written files. To add a figure, add a row to a group; a new group
whose rows are neither training steps, served requests nor collectives needs a function in `_RUNS`.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import nccl_tables
from validation_groups import GROUPS, HERE, RECORDED, Group, errors_of, latency_shares, model_of, settled_plan
from validation_page import written_files

import nadi
from nadi import et
from nadi.cli.main import main as run_command
from nadi.launching.installation import source_hash
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.validation import TOKENS
from nadi.workload.compute import IN_STEPS, ComputeTimes, Efficiencies, find_gpu, nvidia, parse_operators
from nadi.workload.compute.times import roofline_ps
from nadi.workload.generators.memory.states import states_of
from nadi.workload.generators.training import parallel_plan, rules

PROCESSES = 2  # groups that run at a time: each keeps about one core busy


def run(group: Group) -> list[float]:
    """Return Nadi's values in the order of a group's rows."""
    if group.tables:
        return [us for table in group.tables for us in table.predicted_us()]
    if group.name in _RUNS:
        return _RUNS[group.name](group)
    if group.cluster:
        return [_step_s(row, row.get("cluster", group.cluster), group.framework) for row in group.rows]
    if "topology" in group.rows[0]:
        of_rows = [(row["topology"], row["collective"], row["bytes"], "") for row in group.rows]
        return nccl_tables.closed_forms_us(of_rows)
    if "serving" in group.rows[0]:
        return [_served(row, group.quantity) for row in group.rows]
    return _collectives(group)


def _served(row: Mapping[str, Any], quantity: str) -> float:
    """Return the milliseconds to the first token of the median request, or the output tokens per second."""
    finished = nadi.simulate(
        workload={"model": row["model"], "plan": row["plan"], "framework": "inference"},
        serving=row["serving"],
        topology={"cluster": row["cluster"], "gpus": parallel_plan(row["plan"]).gpus},
        network={"fidelity": "closed-form"},
        compute={"vendor_tables": False},
    )
    served = finished.summary["serving"]
    return float(served["tokens_per_s"] if quantity == TOKENS else served["ttft"]["p50_ps"] / 1e9)


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


def _training_operators(group: Group) -> list[float]:
    """Return the ms of each row's operator by the roofline of training on its GPU."""

    def ms(row: Mapping[str, Any]) -> float:
        (operator,) = parse_operators(row["operator"])
        return roofline_ps(operator, find_gpu(row["gpu"]).for_training(), Efficiencies()) / 1e9

    return [ms(row) for row in group.rows]


def _closed_forms(group: Group) -> list[float]:
    """Return the times of NCCL's collectives of all NPUs in microseconds, by closed form."""
    return nccl_tables.closed_forms_us(
        [(row["topology"], row["kind"], row["bytes"], row.get("algorithm", "")) for row in group.rows]
    )


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
    model, cluster, plan = model_of(row), clusters.find(cluster_name), settled_plan(row, framework)
    times = ComputeTimes(find_gpu(cluster.gpu), pace=IN_STEPS.among(plan.gpus), vendor_tables=False)
    return step_time(target_machine(cluster, plan.gpus, times), model, plan, framework).step_ps / 1e12


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
    "nccl-racks": _closed_forms,
    "ns-3": _ns3,
    "operators": _operators,
    "attention-training": _training_operators,
    "kernel-tables": _kernel_tables,
    "zero": _zero,
}
"""Functions that return Nadi's values of groups whose rows are neither training steps nor sizes of a collective."""


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


def write(recorded_by_group: dict[str, Any], record_file: Path = RECORDED, root: Path = HERE.parent) -> None:
    """Replace the file of recorded results, and write what comes from it once no group is missing.

    Args:
        recorded_by_group: The recorded results by the name of their group.
        record_file: The JSON file of recorded results.
        root: The folder of the repository.
    """
    ordered = {group.name: recorded_by_group[group.name] for group in GROUPS if group.name in recorded_by_group}
    written = record_file.with_suffix(".new")
    written.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    written.replace(record_file)
    if len(ordered) == len(GROUPS):
        for path, text in written_files(ordered, root).items():
            path.write_text(text, encoding="utf-8")


def _run(number: int) -> tuple[list[float], float]:
    """Return Nadi's values of a group of GROUPS, and the seconds that they took; runs in a process of its own."""
    start_s = time.perf_counter()
    return run(GROUPS[number]), time.perf_counter() - start_s


def _record(group: Group, values: list[float], recorded: dict[str, Any], code: str) -> None:
    """Put the values of a group that code with a hash has run into the recorded results by group."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    recorded[group.name] = {"date": today, "code": code, "values": values}
    if shares := latency_shares(group):
        recorded[group.name]["latency_shares"] = shares
    if group.tables:
        published = [us for table in group.tables for us in table.measured_us()]
        group.rows[:] = nccl_tables.rows(group.tables, published)
        recorded[group.name]["published"] = published


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


if __name__ == "__main__":
    main()

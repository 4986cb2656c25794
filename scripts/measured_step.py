"""Compare a training step that PyTorch recorded on all ranks with the simulation of the same step.

    python scripts/measured_step.py FOLDER -t dgx-a100:npus=8 --out measured-step

FOLDER holds the host execution traces and Kineto traces of all ranks, or is an archive (.tgz) of them. `nadi trace
convert` converts their last step; the simulation uses the recorded times of host and kernels, and simulates collectives
on the fabric. The measurements are read from the Kineto files themselves, not from the converted traces.
"""

import argparse
import io
import json
import statistics
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from nadi.cli.main import main as nadi

LATE = "(ranks that begin earlier)"  # the node with which a rank waits until it begins (et.pytorch)


class Rank(NamedTuple):
    """A rank's last step in microseconds: its duration; name, start and duration of its NCCL kernels."""

    span_us: float
    kernels: list[tuple[str, float, float]]


class Comparison(NamedTuple):
    """Measured and simulated times."""

    spans_us: dict[int, tuple[float, float]]  # measured and simulated duration of the step in microseconds, by rank
    # number of calls and median measured (minimum over ranks) and simulated times in microseconds, by kernel name
    collectives_us: dict[str, tuple[int, float, float]]
    started_us: list[float]  # simulated minus measured start in microseconds, of all collectives of all ranks


def measured(trace_file: Path) -> tuple[int, Rank]:
    """Return the number and the last step of a rank, from its Kineto trace (JSON).

    Args:
        trace_file: The Kineto trace of one rank.
    """
    document = json.loads(trace_file.read_text(encoding="utf-8", errors="replace"), strict=False)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    step = [event for event in events if event["name"].startswith("ProfilerStep#")][-1]
    begin, end = step["ts"], step["ts"] + step["dur"]
    device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and begin <= e["ts"]]
    last = max([end, *(event["ts"] + event["dur"] for event in device)])
    kernels = sorted((e["ts"] - begin, e["dur"], e["name"]) for e in device if "nccl" in e["name"])
    named = [(name.split("(")[0], float(start), float(duration)) for start, duration, name in kernels]
    return int(document["distributedInfo"]["rank"]), Rank(float(last - begin), named)


def compare(ranks: dict[int, Rank], run_folder: Path) -> Comparison:
    """Compare a run's results with the ranks' measured steps; a rank's k-th collective is its k-th NCCL kernel.

    Args:
        run_folder: The results folder of the run.
        ranks: The measured step of each rank, by its number.
    """
    columns = ["npu", "name", "kind", "group", "start_ps", "finish_ps"]
    rows = pq.read_table(run_folder / "nodes.parquet", columns=columns).to_pylist()
    members = {row["group"]: row["members"] for row in pq.read_table(run_folder / "collectives.parquet").to_pylist()}
    spans, started = {}, []
    simulated: dict[int, list[float]] = defaultdict(list)
    for rank, recorded in ranks.items():
        rank_rows = [row for row in rows if row["npu"] == rank]
        begin = max((row["finish_ps"] for row in rank_rows if row["name"] == LATE), default=0)
        spans[rank] = (recorded.span_us, (max(row["finish_ps"] for row in rank_rows) - begin) / 1e6)
        collectives = sorted(
            (row["start_ps"], row["finish_ps"])
            for row in rank_rows
            if row["kind"] == "collective" and members[row["group"]] > 1
        )
        for place, ((start, finish), kernel) in enumerate(zip(collectives, recorded.kernels, strict=True)):
            started.append((start - begin) / 1e6 - kernel[1])
            simulated[place].append((finish - start) / 1e6)
    by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for place, times in simulated.items():
        fastest = min(recorded.kernels[place][2] for recorded in ranks.values())
        by_name[next(iter(ranks.values())).kernels[place][0]].append((fastest, min(times)))
    medians = {
        name: (len(pairs), statistics.median(m for m, _ in pairs), statistics.median(s for _, s in pairs))
        for name, pairs in by_name.items()
    }
    return Comparison(spans, medians, started)


def run(folder: Path, topology: str, out: Path) -> Comparison:
    """Simulate the traces in a folder or tar archive on a topology into `out`, and compare; exit if a command fails."""
    with tempfile.TemporaryDirectory() as unpacked:
        if folder.is_file():
            with tarfile.open(folder) as archive:
                archive.extractall(unpacked, filter="data")
            folder = Path(unpacked)
        traces = out / "traces"
        for arguments in (
            ["trace", "convert", str(folder), "-o", str(traces)],
            ["run", str(_run_file(out, topology)), "--out", str(out / "results"), "--quiet"],
        ):
            with redirect_stdout(io.StringIO()):
                code = nadi(arguments)
            if code:
                raise SystemExit(code)
        kinetos = [path for path in sorted(folder.rglob("*.json")) if '"traceEvents"' in _head(path)]
        return compare(dict(measured(path) for path in kinetos), out / "results")


def _head(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(1 << 16)


def _run_file(out: Path, topology: str) -> Path:
    """Write the run file of the converted traces into folder `out` and return its path."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "run.toml"
    groups = '\ngroups = "traces/groups.json"'
    file.write_text(
        f'[workload]\ntraces = "traces/trace"{groups}\n[topology]\nspec = "{topology}"\n[compute]\nmodel = "trace"\n',
        encoding="utf-8",
    )
    return file


def table(comparison: Comparison) -> str:
    """Return the comparison as text."""
    lines = ["rank  measured us  simulated us   error"]
    for rank, (measured_us, simulated_us) in sorted(comparison.spans_us.items()):
        lines.append(f"{rank:4d} {measured_us:12.1f} {simulated_us:13.1f} {simulated_us / measured_us - 1:+8.3%}")
    lines += ["", f"{'collective':44} count  measured us  simulated us   error"]
    for name, (count, measured_us, simulated_us) in sorted(comparison.collectives_us.items()):
        lines.append(
            f"{name:44} {count:5d} {measured_us:12.1f} {simulated_us:13.1f} {simulated_us / measured_us - 1:+8.2%}"
        )
    delays_us = sorted(comparison.started_us)
    quantiles = {share: delays_us[min(int(share * len(delays_us)), len(delays_us) - 1)] for share in (0.05, 0.5, 0.95)}
    shown = ", ".join(f"{share:.0%} {value:+.0f}" for share, value in quantiles.items())
    lines += ["", f"simulated minus measured start of {len(delays_us)} collectives, us: {shown}"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison.

    Args:
        arguments: The words of the command line; None means those of the process.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-t", "--topology", default="dgx-a100:npus=8")
    parser.add_argument("--out", type=Path, default=Path("measured-step"))
    args = parser.parse_args(arguments)
    sys.stdout.write(table(run(args.folder, args.topology, args.out)))


if __name__ == "__main__":
    main()

"""A step that PyTorch has recorded on all ranks, beside the simulation of the same step.

    python scripts/measured_step.py FOLDER -t dgx-a100:npus=8 --out measured-step

FOLDER holds the host execution traces and Kineto traces of all ranks, or is an archive (.tgz) of them. Their last step
is converted (`nadi trace convert`) and simulated with the host's and the kernels' times as recorded and collectives on
the fabric. The measured side is read from the Kineto files themselves, not from what the converter makes of them.
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

LATE = "(ranks that begin earlier)"
"""The node with which a rank waits until it begins (et.pytorch.conversion)."""


class Rank(NamedTuple):
    """A rank's last step in microseconds: its length; names, beginnings and times of its NCCL kernels."""

    span_us: float
    kernels: list[tuple[str, float, float]]


class Comparison(NamedTuple):
    """Measured beside simulated.

    Attributes:
        spans_us: by rank, of the step: measured and simulated.
        collectives_us: by name of the kernel: how many, and medians of measured (the least over ranks) and simulated.
        started_us: of all collectives of all ranks, how much later they begin in the simulation.
    """

    spans_us: dict[int, tuple[float, float]]
    collectives_us: dict[str, tuple[int, float, float]]
    started_us: list[float]


def measured(path: Path) -> tuple[int, Rank]:
    """Number and step of a rank."""
    document = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    step = [event for event in events if event["name"].startswith("ProfilerStep#")][-1]
    begin, end = step["ts"], step["ts"] + step["dur"]
    device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"} and begin <= e["ts"]]
    last = max([end, *(event["ts"] + event["dur"] for event in device)])
    kernels = sorted((e["ts"] - begin, e["dur"], e["name"]) for e in device if "nccl" in e["name"])
    named = [(name.split("(")[0], float(start), float(took)) for start, took, name in kernels]
    return int(document["distributedInfo"]["rank"]), Rank(float(last - begin), named)


def compare(ranks: dict[int, Rank], results: Path) -> Comparison:
    """Put a run's results beside what was measured; the k-th collective of a rank is the k-th kernel of NCCL's."""
    columns = ["npu", "name", "kind", "group", "start_ps", "finish_ps"]
    rows = pq.read_table(results / "nodes.parquet", columns=columns).to_pylist()
    members = {row["group"]: row["members"] for row in pq.read_table(results / "collectives.parquet").to_pylist()}
    spans, started = {}, []
    simulated: dict[int, list[float]] = defaultdict(list)
    for rank, said in ranks.items():
        own = [row for row in rows if row["npu"] == rank]
        begin = max((row["finish_ps"] for row in own if row["name"] == LATE), default=0)
        spans[rank] = (said.span_us, (max(row["finish_ps"] for row in own) - begin) / 1e6)
        done = sorted(
            (row["start_ps"], row["finish_ps"])
            for row in own
            if row["kind"] == "collective" and members[row["group"]] > 1
        )
        for place, ((start, finish), kernel) in enumerate(zip(done, said.kernels, strict=True)):
            started.append((start - begin) / 1e6 - kernel[1])
            simulated[place].append((finish - start) / 1e6)
    by_name: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for place, times in simulated.items():
        least = min(said.kernels[place][2] for said in ranks.values())
        by_name[next(iter(ranks.values())).kernels[place][0]].append((least, min(times)))
    medians = {
        name: (len(some), statistics.median(m for m, _ in some), statistics.median(s for _, s in some))
        for name, some in by_name.items()
    }
    return Comparison(spans, medians, started)


def run(folder: Path, topology: str, out: Path) -> Comparison:
    """Convert, simulate and compare.

    Raises:
        SystemExit: a command has failed; it has said why.
    """
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
    out.mkdir(parents=True, exist_ok=True)
    file = out / "run.toml"
    groups = '\ngroups = "traces/groups.json"'
    file.write_text(
        f'[workload]\ntraces = "traces/trace"{groups}\n[topology]\nspec = "{topology}"\n[compute]\nmodel = "trace"\n',
        encoding="utf-8",
    )
    return file


def table(found: Comparison) -> str:
    """The comparison as text."""
    lines = ["rank  measured us  simulated us   error"]
    for rank, (real, made) in sorted(found.spans_us.items()):
        lines.append(f"{rank:4d} {real:12.1f} {made:13.1f} {made / real - 1:+8.3%}")
    lines += ["", f"{'collective':44} count  measured us  simulated us   error"]
    for name, (count, real, made) in sorted(found.collectives_us.items()):
        lines.append(f"{name:44} {count:5d} {real:12.1f} {made:13.1f} {made / real - 1:+8.2%}")
    late = sorted(found.started_us)
    at = {share: late[min(int(share * len(late)), len(late) - 1)] for share in (0.05, 0.5, 0.95)}
    shown = ", ".join(f"{share:.0%} {value:+.0f}" for share, value in at.items())
    lines += ["", f"beginnings of {len(late)} collectives in the simulation less measured, us: {shown}"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-t", "--topology", default="dgx-a100:npus=8")
    parser.add_argument("--out", type=Path, default=Path("measured-step"))
    given = parser.parse_args(arguments)
    sys.stdout.write(table(run(given.folder, given.topology, given.out)))


if __name__ == "__main__":
    main()

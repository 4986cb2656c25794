"""Damaged files of results, parts of plans, Kineto traces and MSCCL algorithms, each made from a seed.

Each example is a good input with a few changes. A command that reads it must succeed, or refuse it in one line with
exit code 2 and leave nothing half-written; `complaints` returns whatever else happened.
"""

import contextlib
import io
import json
import random
import shutil
import time
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from nadi.cli.main import main
from tests.damaged import peers
from tests.damaged.documents import damage_document
from tests.damaged.peer_files import peer_files
from tests.et.mutations import changed_bytes, changed_text
from tests.et.pytorch.recorded import call, host, host_node, kernel, kineto, nccl_kernel, op
from tests.workload import msccl_files

_PEER_FILES = ("simai", "htsim", "mscclpp", "fabric")
CODES = {kind: {0, 1, 2} for kind in ("astra-sim", "simai", "htsim")}
"""Exit codes by kind of example: a damaged network may lose all packets, so that the run fails."""
LONGEST_S = 30
"""CPU time in seconds that a command may take for one example."""
_RUN = """
[workload]
traces = "{traces}"
[topology]
name = "fat-tree"
params = {{ npus = 4, hosts_per_leaf = 2, leaves_per_pod = 2, oversubscription = 2, rate = "100Gbps", delay = "1us" }}
[network]
switch = "shared-buffer"
buffer = "1MB"
pfc = true
congestion_control = "dcqcn"
[compute]
model = "roofline"
peak_flops = "140TFLOPS"
[memory]
bandwidth = "2TB/s"
"""
_MODEL = ("--model", "gpt3-125m", "--cluster", "dgx-h100-superpod")


class Example(NamedTuple):
    """One damaged input.

    Attributes:
        kind: "results", "plan", "kineto", "msccl", "astra-sim", "simai", "htsim", "mscclpp"
            or "fabric".
        what: Description of the changes, for a person who looks at a failure.
        command: Arguments of `nadi`.
    """

    kind: str
    what: str
    command: list[str]


def make_bases(folder):
    traces = folder / "traces"
    _must("workload", "transformer", "--npus", 4, "--layers", 1, "--hidden", 256, "--heads", 4, "-o", traces)
    file = folder / "run.toml"
    file.write_text(_RUN.format(traces=traces / "transformer"))
    _must("run", file, "--out", folder / "packets")
    _must("run", *_MODEL, "--plan", "tp2,pp2,mb1,gb4", "--fidelity", "closed-form", "--out", folder / "model")
    plan = ("plan", *_MODEL, "--gpus", 8, "--plan", "mb1,gb8,tp2", "--confirm", 0)
    _must(*plan, "--shard", "0/2", "--out", folder / "part0")
    _must(*plan, "--shard", "1/2", "--out", folder / "part1")
    sweep = folder / "sweep.toml"
    sweep.write_text('run = "run.toml"\n[values]\n"engine.seed" = [1, 2]\n')
    peers.make_astra_sim(folder / "astra-sim")
    _must("sweep", sweep, "--out", folder / "sweep", "--jobs", 1)


def _must(*arguments):
    code, out, err = run(*arguments)
    if code:
        raise AssertionError(f"{arguments}: exit code {code}: {err}{out}")


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def example(seed, bases, folder, kind=""):
    """Make the damaged input of a seed.

    Args:
        seed: Number of the example.
        kind: Kind of the example, "" = any.
        bases: Folder that `make_bases` filled.
        folder: Empty folder for the damaged input.
    """
    rng = random.Random(seed)  # noqa: S311 - examples, no secrets
    kinds = ("results", "results", "plan", "kineto", "kineto", "msccl", "astra-sim", "astra-sim", *_PEER_FILES)
    kind = kind or rng.choice(kinds)
    if kind in _PEER_FILES:
        return Example(kind, *peer_files(rng, kind, folder))
    if kind == "astra-sim":
        return Example(kind, *peers.astra_sim(rng, bases / kind, folder))
    if kind in {"results", "plan"}:
        return (_results if kind == "results" else _plan)(rng, bases, folder)
    return (_kineto if kind == "kineto" else _msccl)(rng, folder)


def complaint(made, folder):
    """Run an example's command; returns what was wrong with how it ended, "" if nothing."""
    begin = time.process_time()
    code, said, err = run(*made.command)
    took_s = time.process_time() - begin
    found = ""
    if code not in CODES.get(made.kind, {0, 2}) or "Traceback" in err:
        found = f"exit code {code}: {err}{said[-300:]}"
    elif code and sum(not _is_progress(line) for line in err.splitlines()) != 1:
        found = f"more than one line: {err}"
    elif code and (folder / "out").exists():
        found = f"something half-written is left: {err}"
    elif took_s > LONGEST_S:
        found = f"took {took_s:.1f} s of CPU"
    return f"{made.kind}: {made.what}: nadi {' '.join(map(str, made.command))}: {found}" if found else ""


def _is_progress(line):
    """Whether a line of standard error is progress of a sweep."""
    return line.startswith("point ") or (line.startswith("nadi: ") and not line.startswith("nadi: error"))


def _results(rng, bases, folder):
    base = rng.choices(("packets", "model", "sweep"), (12, 6, 1))[0]
    damaged = folder / "damaged"
    shutil.copytree(bases / base, damaged)
    files = sorted(path for path in damaged.rglob("*") if path.suffix in {".json", ".parquet", ".csv", ".toml"})
    summary = damaged / "summary.json"
    file = summary if summary in files and rng.random() < 0.5 else rng.choice(files)
    what = f"{base}/{file.relative_to(damaged)}: {_damage(rng, file)}"
    out = folder / "out"
    if base == "sweep":
        return Example("results", what, ["sweep", bases / "sweep.toml", "--out", damaged])
    choices = [
        ["report", damaged, "-o", out],
        ["compare", damaged, bases / base],
        ["compare", bases / base, damaged, "-o", out],
        ["explain", damaged, "--json"],
        ["explain", damaged],
        ["energy", damaged],
        ["timeline", damaged, "-o", out],
        ["net", damaged],
        ["net", damaged, "--json"],
    ]
    return Example("results", what, rng.choice(choices))


def _damage(rng, file):
    """Change a file; returns a description."""
    if file.suffix == ".parquet":
        return _damage_table(rng, file)
    how = rng.randrange(6)
    if file.suffix == ".json" and how < 4:
        document = json.loads(file.read_text())
        what = damage_document(rng, document)
        file.write_text(json.dumps(document))
        return what
    if how == 4:
        file.write_bytes(changed_bytes(rng, file.read_bytes()))
        return "other bytes"
    file.write_bytes(changed_text(rng, file.read_text()))
    return "other words"


def _damage_table(rng, file):
    """Change a Parquet file: its bytes, a column, values or rows; returns a description."""
    how = rng.randrange(8)
    if how == 0:
        file.write_bytes(changed_bytes(rng, file.read_bytes()))
        return "other bytes"
    if how == 1:
        file.unlink()
        return "removed"
    table = pq.read_table(file)
    column = rng.randrange(table.num_columns)
    name = table.column_names[column]
    if how == 2:
        table, what = table.remove_column(column), f"without {name}"
    elif how == 3:
        begin = rng.randrange(table.num_rows + 1)
        table, what = table.slice(begin, rng.randrange(table.num_rows + 1)), f"rows from {begin} on"
    elif how == 4 and table.num_rows:
        table, what = pa.concat_tables([table, table.slice(0, 1)]), "first row twice"
    else:
        values = table.column(column).to_pylist()
        odd = rng.choice(
            (None, -1, 0, 1, 2**31 - 1, 2**40, 2**63 - 1, -(2**63), "x", "", 1.5, float("nan"), float("inf"))
        )
        for at in rng.sample(range(len(values)), min(len(values), rng.choice((1, 1, 2, len(values))))):
            values[at] = odd
        what = f"{name} = {odd!r}"
        try:
            array = pa.array(values, table.schema.field(column).type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            array = pa.array([odd] * len(values))
        table = table.set_column(column, name, array)
    pq.write_table(table, file)
    return what


def _plan(rng, bases, folder):
    damaged = folder / "damaged"
    shutil.copytree(bases / "part0", damaged)
    what = f"plan.json: {_damage(rng, damaged / 'plan.json')}"
    parts = ["--merge", damaged, "--merge", bases / "part1"]
    if rng.random() < 0.3:
        parts = ["--merge", bases / "part1", "--merge", damaged]
    ways = (["--json"], [], ["--out", folder / "out"])
    return Example("plan", what, ["plan", *parts, *rng.choice(ways)])


def _documents():
    """A Kineto trace with collectives, waits and copies, and the host's trace of the same step."""
    group = {"Group size": 2, "Collective name": "allreduce", "Process Group Name": "0", "dtype": "Half"}
    group |= {"In msg nelems": 1024, "Out msg nelems": 1024, "Process Group Ranks": "[0, 1]"}
    events = [
        op("ProfilerStep#1", 0, 100, category="user_annotation"),
        op("aten::mm", 1, 9, rf_id=3),
        call("cudaLaunchKernel", 2, 3, 1),
        kernel("gemm", 5, 15, 1),
        op("record_param_comms", 20, 29, rf_id=4, **group),
        call("cudaLaunchKernel", 21, 22, 2),
        nccl_kernel(25, 45, 2),
        call("cudaMemcpyAsync", 50, 51, 3),
        kernel("Memcpy HtoD", 52, 60, 3, category="gpu_memcpy"),
        call("cudaStreamWaitEvent", 61, 62, 4),
    ]
    groups = [{"pg_name": "0", "pg_desc": "default", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]
    trace = kineto(events, world=2, baseTimeNanoseconds=1000, pg_config=groups)
    trace["distributedInfo"]["pg_config"] = groups
    nodes = [
        {**host_node(1, "[pytorch|profiler|execution_trace|process]", 1, parent=0)},
        host_node(2, "[pytorch|profiler|execution_trace|thread]", 2, parent=1),
        host_node(3, "aten::mm", 3),
        host_node(4, "record_param_comms", 4, **group),
    ]
    return trace, host(nodes)


def _kineto(rng, folder):
    documents = dict(zip(("trace", "nodes"), _documents(), strict=True))
    damaged = folder / "damaged"
    damaged.mkdir()
    which = rng.choice(("trace", "trace", "nodes"))
    alone = rng.random() < 0.5
    what = damage_document(rng, documents[which])
    for name, document in documents.items():
        if name == which or not alone:
            text = json.dumps(document)
            data = text.encode()
            if name == which and rng.random() < 0.15:
                data, what = changed_text(rng, text), f"{what}; other words"
            (damaged / f"{name}.rank0.json").write_bytes(data)
    command = rng.choice((["convert", damaged, "-o", folder / "out"], ["link", damaged, "-o", folder / "out"]))
    return Example("kineto", f"{which}{' alone' * alone}: {what}", ["trace", *command])


def _msccl(rng, folder):
    kind, text = rng.choice(
        (
            ("all-reduce", msccl_files.ring(4)),
            ("all-reduce", msccl_files.all_pairs(4)),
            ("all-gather", msccl_files.hierarchical_all_gather()),
        )
    )
    words = (str(2**62), "9" * 300, "-1", "0", "1", "x", "NaN", "4.5", "٣", "")
    text = f'<?xml version="1.0" encoding="utf-8"?>\n{text}'
    for _ in range(rng.choice((1, 1, 2))):
        fields = text.split('"')
        at = 3 if rng.random() < 0.05 else 2 * rng.randrange(len(fields) // 2) + 1
        encodings = ("hex", "zlib", "rot13", "utf-16", "idna", "undefined")
        fields[at] = rng.choice(encodings if at == 3 else (*words, rng.choice(fields[1::2])))
        text = '"'.join(fields)
    data = text.encode()
    if rng.random() < 0.2:
        data = changed_text(rng, text)
    file = folder / "a.xml"
    file.write_bytes(data)
    npus = text.count("<gpu ") or 4
    fabric = f"switch:npus={npus},rate=100Gbps,delay=1us"
    command = ["collective", kind, "-t", fabric, "--sizes", "64KiB", "--algorithm", f"custom:file={file}"]
    return Example("msccl", "", command)

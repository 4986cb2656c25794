"""Commands of `nadi trace` for traces that stand for others: representative, synthetic and obfuscated ones."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nadi.cli.options import AsJson, TracesOut
from nadi.cli.output import print_document, print_json
from nadi.launching.ending import unwound
from nadi.terminal import FittedTable, facts, name_column, say

if TYPE_CHECKING:
    from nadi.et import TraceTable
    from nadi.et.obfuscation import Level, SecretKey
    from nadi.et.selection import Coverage, TraceSelection
    from nadi.et.synthesis import SynthesisRequest
    from nadi.workload import TraceSet

_WHERE = "Files, or folders that are searched recursively: traces and trace sets."
_RADIUS = "Distance in standard deviations within which a chosen trace covers others."
_EACH = "Unit of choice: trace (files; those of trace sets weighted by their NPUs) or folder (all its traces)."
_SETS = "Trace sets to learn from (folders with traces.json), or folders that contain such folders."
_LIKE = "Trace set whose stages, groups, passes and sizes are imitated. Default: an input chosen by --seed."
_NODES = "Approximate number of nodes per trace. Default: that of --like."
_RANKS = "Number of NPUs; groups that span a whole stage, mostly data parallelism, grow accordingly."
_GPU_OF_TIMES = "GPU (h100, ...) that determines durations of compute nodes with operators but without times."
_SYNTHETIC = "synthetic"
Groups = Mapping[str, Any]  # members of each group by name
_TRACES = "Plain traces, a folder of plain traces, or a trace set."
_KEY = "File with a secret key of 16 bytes or more."
_FIDELITY = (
    "Treatment of sizes and times: full, near, coarse, scaled or structure; see docs/explanation/synthetic-traces.md."
)
_GPU = "GPU (h100, ...) whose operator times replace the operators of compute nodes, which reveal shapes."
_GROUPS = "Group file of plain traces. Default: groups.json beside them, if present."
_PREFIX = "trace"


class _Item(NamedTuple):
    """A candidate."""

    path: Path  # Trace, or folder of traces
    files: list[Path]  # Traces of the candidate
    npus: list[int]  # Number of NPUs that each trace represents


def select(
    paths: list[Path] = typer.Argument(metavar="DIR|FILE...", help=_WHERE),
    k: int = typer.Option(..., "-k", min=1, metavar="N", help="Number of traces to choose."),
    each: str = typer.Option("trace", metavar="WHAT", help=_EACH),
    radius: float = typer.Option(0.5, min=0, help=_RADIUS),
    seed: int = typer.Option(0, min=0, help="Seed of samples and of the random choices for comparison."),
    as_json: AsJson = False,
) -> None:
    """Choose representative traces by features and clusters, with weights, and print their coverage."""
    import numpy as np

    from nadi.et import TraceError
    from nadi.et.selection import choose, coverage

    if each not in {"trace", "folder"}:
        raise TraceError(f"--each {each}: expected trace or folder")
    items = _items(paths, by_folder=each == "folder")
    if not items:
        raise TraceError(f"{paths[0]}: no traces, expected files .et or .et.gz there or below")
    rows, sums = _measured(items)
    npus = np.array([sum(item.npus) if each == "trace" else 1 for item in items], np.float64)
    choice = choose(rows, npus, k, seed)
    found = coverage(choice, radius, seed)
    estimates = {
        name: (float(np.average(sums[:, i], weights=npus)), float(choice.weights @ sums[choice.chosen, i]))
        for i, name in enumerate(("nodes", "communicated_bytes", "compute_micros"))
    }
    print_document(_document(items, choice, found, estimates), _table, as_json=as_json)


def _measured(items: list[_Item]) -> "tuple[Any, Any]":
    """Return float64[items, features], and float64[items, 3]: nodes, bytes and microseconds as means over NPUs."""
    import numpy as np

    from nadi.et import NodeType, read_trace
    from nadi.et.selection import features

    rows, sums = [], []
    for item in items:
        own_rows, own_sums = [], []
        for file in item.files:
            table = read_trace(file, strict=False)
            own_rows.append(features(table))
            micros = table.duration_micros[table.type == NodeType.COMP_NODE].sum()
            own_sums.append([len(table), table.comm_size[table.comm_size > 0].sum(), micros])
        rows.append(np.average(own_rows, axis=0, weights=item.npus))
        sums.append(np.average(own_sums, axis=0, weights=item.npus))
    return np.array(rows), np.array(sums, np.float64)


def _items(paths: list[Path], *, by_folder: bool) -> list[_Item]:
    """Return the candidates: traces, or folders with all their traces."""
    items: dict[Path, _Item] = {}
    for folder, file, npus in _traces_below(paths):
        place = folder if by_folder else file
        item = items.setdefault(place, _Item(place, [], []))
        item.files.append(file)
        item.npus.append(npus)
    return list(items.values())


def _traces_below(paths: list[Path]) -> Iterator[tuple[Path, Path, int]]:
    """Yield folder, file and number of NPUs of each trace, each once."""
    from nadi.et import TraceError
    from nadi.workload.trace_sets import describe_set, is_set

    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path}: no such file or folder, expected traces")
        below = (file for file in path.rglob("*.et*") if file.name.endswith((".et", ".et.gz")) and file.is_file())
        files = [path] if path.is_file() else sorted(below)
        npus: dict[Path, dict[str, int]] = {}
        for file in files:
            # paths of the user may overlap
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            if file.parent not in npus and is_set(file.parent):
                traces = describe_set(file.parent)["traces"]
                npus[file.parent] = {trace["file"]: trace["npus"] for trace in traces}
            yield file.parent, file, npus.get(file.parent, {}).get(file.name, 1)


def _document(
    items: list[_Item],
    selection: "TraceSelection",
    coverage_of_selection: "Coverage",
    means_of_quantity: dict[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return the selection as a JSON document, with (mean over all, estimate by the chosen) of each quantity."""
    chosen = []
    for number, row in enumerate(selection.chosen.tolist()):
        own = selection.representative == number
        farthest = float(selection.distance[own].max())
        weight = float(selection.weights[number])
        chosen.append({"path": str(items[row].path), "weight": weight, "items": int(own.sum()), "farthest": farthest})
    means = {name: {"all": of_all, "chosen": of_chosen} for name, (of_all, of_chosen) in means_of_quantity.items()}
    return {
        "items": len(items),
        "chosen": chosen,
        "coverage": dataclasses.asdict(coverage_of_selection),
        "means": means,
    }


def _table(document: dict[str, Any]) -> Any:  # noqa: ANN401 - what rich prints
    """Return the table of a document of `_document`."""
    from rich.console import Group

    table = FittedTable("", name_column("trace"), "weight", "stands for", ("farthest", 1))
    for row in document["chosen"]:
        table.add_row(row["path"], f"{row['weight']:.1%}", row["items"], f"{row['farthest']:.2f}")
    found = document["coverage"]
    rows = [
        ("distance", f"{found['mean']:.3f} in the mean, {found['random_mean']:.3f} if chosen by chance"),
        ("", f"{found['median']:.3f} of half of them, {found['p90']:.3f} of 90 %, {found['farthest']:.3f} at most"),
        (f"within {found['radius']:g}", f"{found['within']:.1%} of all"),
    ]
    for name, means in document["means"].items():
        rows.append((name.replace("_", " "), f"{means['all']:,.0f} in the mean, {means['chosen']:,.0f} by the chosen"))
    return Group(f"{len(document['chosen'])} of {document['items']:,}", "", table, facts("", rows))


def synth(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help=_SETS)],
    out: TracesOut,
    like: Path | None = typer.Option(None, metavar="DIR", help=_LIKE),
    nodes: int | None = typer.Option(None, min=4, max=100_000, metavar="N", help=_NODES),
    ranks: int | None = typer.Option(None, min=1, max=1 << 20, metavar="N", help=_RANKS),
    communication: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Factor of all communication sizes."),
    compute: float = typer.Option(1.0, min=1e-6, max=1e6, metavar="X", help="Factor of all compute times."),
    gpu: str | None = typer.Option(None, metavar="GPU", help=_GPU_OF_TIMES),
    seed: int = typer.Option(0, min=0, help="Seed of all random choices: the same seed gives the same traces."),
    as_json: AsJson = False,
) -> None:
    """Learn from trace sets and generate a new, valid one of any size that contains nothing of the originals."""
    from nadi.et import TraceError
    from nadi.et.synthesis import generate, learn, request_of, stream_of
    from nadi.workload import TraceSet, write_set

    folders = _sets_below(paths)
    sets = [_with_times(folder, gpu) for folder in folders]
    learned = learn(sets)
    if like is None:
        # the seed also picks the original whose size is taken
        request = learned.requests[seed % len(learned.requests)]
    else:
        request = request_of(stream_of(_with_times(like, gpu)))
    generated = generate(learned, _adjusted(request, nodes, ranks, communication, compute), seed)
    if not any(len(table) for table in generated.traces):
        raise TraceError("synthesis: no nodes, expected some")
    new_set = TraceSet(generated.traces, generated.trace_of_npu, generated.example_npu, generated.families)
    with unwound():
        write_set(out, new_set, _SYNTHETIC)
    npus, traces, nodes = len(generated.trace_of_npu), len(generated.traces), sum(map(len, generated.traces))
    if as_json:
        print_json({"out": str(out), "npus": npus, "traces": traces, "nodes": nodes, "learned_from": len(sets)})
        return
    contents = f"{npus:,} NPUs, {traces} traces of {nodes:,} nodes in all, learned from {len(sets)} trace sets"
    say(f'{contents}; in a run file: [workload] traces = "{out}"')


def _sets_below(paths: list[Path]) -> list[Path]:
    """Return the folders of the trace sets at or below the paths, each once."""
    from nadi.et import TraceError

    folders: dict[Path, Path] = {}
    for path in paths:
        own = [file.parent for file in sorted(path.rglob("traces.json"))] if path.is_dir() else []
        if not own:
            raise TraceError(f"{path}: no trace set, expected a folder with traces.json there or below")
        folders.update({folder.resolve(): folder for folder in own})
    return list(folders.values())


def _with_times(folder: Path, gpu_name: str | None) -> "TraceSet":
    """Return a trace set whose nodes of accelerators have durations: recorded ones, or on a GPU."""
    from nadi.et import NodeType, TraceError
    from nadi.workload import read_set
    from nadi.workload.program import with_times_on

    traces = read_set(folder)
    traces = dataclasses.replace(traces, traces=list(map(with_times_on(gpu_name), traces.traces)))
    is_compute = [(table.type == NodeType.COMP_NODE) & ~table.is_cpu_op for table in traces.traces]
    timed = [table.duration_micros[own].any() for table, own in zip(traces.traces, is_compute, strict=True)]
    if any(own.any() for own in is_compute) and not any(timed):
        raise TraceError(f"{folder}: compute nodes without durations, expected some, or --gpu NAME that works them out")
    return traces


def _adjusted(
    request: "SynthesisRequest", nodes: int | None, ranks: int | None, bytes_factor: float, compute_factor: float
) -> "SynthesisRequest":
    """Return a request with the options' numbers of nodes and NPUs, bytes and compute time."""
    from nadi.et.synthesis import MICROS

    layout = request.layout if ranks is None else request.layout.scaled(ranks)
    times = 1.0 if nodes is None else nodes * layout.roles / request.events
    return request._replace(
        layout=layout,
        events=round(request.events * times),
        messages={ends: max(round(count * times), 1) for ends, count in request.messages.items()},
        totals={
            key: total * times * (compute_factor if key[0] == MICROS else bytes_factor)
            for key, total in request.totals.items()
        },
    )


def obfuscate(
    traces: Annotated[Path, typer.Argument(metavar="PREFIX|DIR|SET", help=_TRACES)],
    out: TracesOut,
    key_file: Annotated[Path, typer.Option("--key-file", metavar="FILE", help=_KEY)],
    fidelity: str = typer.Option("full", metavar="LEVEL", help=_FIDELITY),
    gpu: str | None = typer.Option(None, metavar="GPU", help=_GPU),
    groups: Path | None = typer.Option(None, metavar="FILE", help=_GROUPS),
    as_json: AsJson = False,
) -> None:
    """Hide names, shapes, ids, groups and optionally sizes and times with a secret key; the structure stays."""
    from nadi.et.obfuscation import level_of, read_secret
    from nadi.workload.program import with_times_on
    from nadi.workload.trace_sets import is_set

    level, secret = level_of(fidelity), read_secret(key_file)
    source = _trace_set(traces, groups) if is_set(traces) else _plain_traces(traces, groups)
    with unwound():
        summary = _hide(source, out, secret, level, with_times_on(gpu))
    if as_json:
        print_json(summary)
        return
    beside = f', groups = "{summary["groups"]}"' if summary["groups"] else ""
    contents = f"{summary['traces']:,} traces of {summary['nodes']:,} nodes in disguise"
    fidelity = f"fidelity {level.name}: {level.meaning}"
    say(f'{contents}, {fidelity}; in a run file: [workload] traces = "{summary["out"]}"{beside}')
    if summary["operators"]:
        say(f"{summary['operators']:,} compute nodes lost their operators: --gpu NAME keeps their times")


class _Source(NamedTuple):
    """Input traces, and the function that writes the results in the same form."""

    # Function that reads the traces one by one; it may be called several times
    tables: "Callable[[], Iterable[TraceTable]]"
    groups: Groups
    # Function that writes tables and groups to a folder and returns the paths for a run file: traces, group file
    write: "Callable[[Path, Iterable[TraceTable], Groups], tuple[Path, Path | None]]"


def _hide(
    trace_source: _Source,
    out: Path,
    secret: "SecretKey",
    level: "Level",
    prepare_table: "Callable[[TraceTable], TraceTable]",
) -> dict[str, object]:
    """Hide traces in two passes: the first collects the values in use, the second writes each trace into `out`."""
    from nadi.et.obfuscation import Obfuscation, Vocabulary, obfuscate as hidden

    used = Vocabulary(groups=set(trace_source.groups))
    for table in trace_source.tables():
        used.add(table)
    disguise = Obfuscation(secret, level, used)
    counts = Counter[str](traces=0, nodes=0, operators=0)

    def disguised() -> "Iterator[TraceTable]":
        for table in map(prepare_table, trace_source.tables()):
            with_operators = (table.operators > 0) & (table.duration_micros == 0)
            counts.update(traces=1, nodes=len(table), operators=int(with_operators.sum()))
            yield hidden(table, disguise)

    groups = {disguise.groups[name]: members for name, members in trace_source.groups.items()}
    traces, group_file = trace_source.write(out, disguised(), groups)
    return {"out": str(traces), "groups": None if group_file is None else str(group_file), **counts}


def _trace_set(folder: Path, groups_option: Path | None) -> _Source:
    """Return a source that holds the traces of a trace set in memory."""
    from nadi.et import TraceError
    from nadi.workload import read_set, write_set

    if groups_option is not None:
        raise TraceError(
            f"--groups {groups_option}: {folder} is a trace set, expected none: its groups are its families"
        )
    found = read_set(folder)

    def write(out: Path, tables: "Iterable[TraceTable]", families: Groups) -> tuple[Path, None]:
        renamed = dict(zip(found.families, families, strict=True))
        copied = frozenset(renamed[name] for name in found.copied)
        write_set(out, dataclasses.replace(found, traces=list(tables), families=families, copied=copied), _PREFIX)
        return out, None

    return _Source(lambda: found.traces, found.families, write)


def _plain_traces(prefix_or_folder: Path, group_file_option: Path | None) -> _Source:
    """Return a source that holds one trace at a time in memory."""
    from nadi.et import read_groups, read_trace, write_table
    from nadi.et.files import GROUPS_NAME, plain_traces
    from nadi.workload.trace_sets import staged_traces

    found = plain_traces(prefix_or_folder)
    beside = found.prefix.parent / GROUPS_NAME
    group_file = beside if group_file_option is None and beside.is_file() else group_file_option
    files = {npu: f"{_PREFIX}.{npu}.et{'.gz' * (file.suffix == '.gz')}" for npu, file in found.files.items()}

    def write(out: Path, tables: "Iterable[TraceTable]", members: Groups) -> tuple[Path, Path | None]:
        with staged_traces(out, [*files.values(), *([GROUPS_NAME] * bool(members))], "these traces") as staging:
            for name, table in zip(files.values(), tables, strict=True):
                write_table(staging / name, table)
            if members:
                by_number = dict(sorted(members.items(), key=lambda item: int(item[0])))
                (staging / GROUPS_NAME).write_text(json.dumps(by_number) + "\n", encoding="utf-8")
        return out / _PREFIX, out / GROUPS_NAME if members else None

    members = read_groups(group_file) if group_file is not None else {}
    return _Source(lambda: map(read_trace, found.files.values()), members, write)

"""`nadi trace obfuscate`: hide confidential contents of traces before sharing them."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nadi.cli.options import AsJson, TracesOut
from nadi.cli.output import print_json
from nadi.launching.ending import unwound
from nadi.terminal.printing import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nadi.et import TraceTable
    from nadi.et.obfuscation import Level, SecretKey

    Groups = Mapping[str, Any]

_TRACES = "Plain traces, a folder of plain traces, or a trace set."
_KEY = "File with a secret key of 16 bytes or more."
_FIDELITY = (
    "Treatment of sizes and times: full, near, coarse, scaled or structure; see docs/explanation/synthetic-traces.md."
)
_GPU = "GPU (h100, ...) whose operator times replace the operators of compute nodes, which reveal shapes."
_GROUPS = "Group file of plain traces. Default: groups.json beside them, if present."
_PREFIX = "trace"


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
    groups: "Groups"  # Members of each group by name
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
    from nadi.et.obfuscation import Obfuscation, Vocabulary
    from nadi.et.obfuscation import obfuscate as hidden

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
    import dataclasses

    from nadi.et import TraceError
    from nadi.workload import read_set, write_set

    if groups_option is not None:
        raise TraceError(
            f"--groups {groups_option}: {folder} is a trace set, expected none: its groups are its families"
        )
    found = read_set(folder)

    def write(out: Path, tables: "Iterable[TraceTable]", families: "Groups") -> tuple[Path, None]:
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

    def write(out: Path, tables: "Iterable[TraceTable]", members: "Groups") -> tuple[Path, Path | None]:
        with staged_traces(out, [*files.values(), *([GROUPS_NAME] * bool(members))], "these traces") as staging:
            for name, table in zip(files.values(), tables, strict=True):
                write_table(staging / name, table)
            if members:
                by_number = dict(sorted(members.items(), key=lambda item: int(item[0])))
                (staging / GROUPS_NAME).write_text(json.dumps(by_number) + "\n", encoding="utf-8")
        return out / _PREFIX, out / GROUPS_NAME if members else None

    members = read_groups(group_file) if group_file is not None else {}
    return _Source(lambda: map(read_trace, found.files.values()), members, write)

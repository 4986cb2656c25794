"""`nadi trace obfuscate`: traces that may be given away."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nadi.options import named_path

if TYPE_CHECKING:
    from et import TraceTable
    from et.obfuscation import Disguise, Level, Secret

_FIDELITY = "What becomes of sizes and times: full, near, coarse, scaled or structure; see docs/trace-obfuscation.md."
_GPU = "Compute nodes say how long their operators take on it (h100, ...): the operators, which tell shapes, go."
_GROUPS = "Group file of plain traces; else groups.json beside them, if it is there."
_PREFIX = "trace"
_GROUPS_NAME = "groups.json"


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(obfuscate)


def obfuscate(
    traces: Path = typer.Argument(metavar="PREFIX|DIR|SET", help="Plain traces, a folder of them, or a trace set."),
    out: Path = typer.Option(..., "-o", "--out", metavar="DIR", parser=named_path, help="Folder for the traces."),
    key_file: Path = typer.Option(..., "--key-file", metavar="FILE", help="16 bytes or more that nobody else has."),
    fidelity: str = typer.Option("full", metavar="LEVEL", help=_FIDELITY),
    gpu: str | None = typer.Option(None, metavar="GPU", help=_GPU),
    groups: Path | None = typer.Option(None, metavar="FILE", help=_GROUPS),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Hide names, shapes, ids, groups and, as far as wanted, sizes and times, by a key; the structure stays."""
    from et.obfuscation import level_of, read_secret
    from nadi.launching.ending import unwound
    from nadi.terminal.printing import say
    from workload.trace_sets.files import is_set

    level, secret = level_of(fidelity), read_secret(key_file)
    prepare = _preparation(gpu)
    with unwound():
        write = _write_set if is_set(traces) else _write_plain
        said = write(traces, out, secret, level, prepare, groups)
    if as_json:
        typer.echo(json.dumps(said, indent=2))
        return
    beside = f', groups = "{said["groups"]}"' if said["groups"] else ""
    say(
        f"{said['traces']:,} traces of {said['nodes']:,} nodes in disguise, fidelity {level.name}: {level.meaning}; "
        f'in a run file: [workload] traces = "{said["out"]}"{beside}'
    )
    if said["operators"]:
        say(f"{said['operators']:,} compute nodes told their operators, which are gone: --gpu NAME keeps their times")


def _preparation(gpu: str | None) -> "Callable[[TraceTable], TraceTable]":
    """What is done with a trace before it is hidden."""
    if gpu is None:
        return lambda table: table
    from workload.compute import ComputeTimes, find_gpu
    from workload.compute.efficiency import IN_STEPS
    from workload.program.recorded import with_recorded_times

    times = ComputeTimes(find_gpu(gpu), pace=IN_STEPS)
    return lambda table: with_recorded_times(table, times)


def _write_set(
    source: Path,
    out: Path,
    secret: "Secret",
    level: "Level",
    prepare: "Callable[[TraceTable], TraceTable]",
    groups: Path | None,
) -> dict[str, object]:
    import dataclasses

    from et import TraceError
    from et.obfuscation import Disguise, Vocabulary
    from et.obfuscation import obfuscate as hidden
    from workload import read_set, write_set

    if groups is not None:
        raise TraceError(f"--groups {groups}: {source} is a trace set, expected none: its groups are its families")
    found = read_set(source)
    used = Vocabulary()
    used.groups |= set(found.families)
    tables = [prepare(table) for table in found.traces]
    for table in tables:
        used.add(table)
    disguise = Disguise(secret, level, used)
    families = {disguise.groups[name]: members for name, members in found.families.items()}
    made = [hidden(table, disguise) for table in tables]
    write_set(out, dataclasses.replace(found, traces=made, families=families), _PREFIX)
    return _said(out, len(made), sum(map(len, made)), sum(map(_with_operators, tables)), None)


def _write_plain(
    source: Path,
    out: Path,
    secret: "Secret",
    level: "Level",
    prepare: "Callable[[TraceTable], TraceTable]",
    groups: Path | None,
) -> dict[str, object]:
    """One trace after another is read, and read again to be written: one at a time is in memory."""
    from et import read_groups, read_trace, write_table
    from et.obfuscation import Disguise, Vocabulary
    from et.obfuscation import obfuscate as hidden
    from et.prefixes import plain_traces
    from workload.trace_sets.folder import staged_traces

    found = plain_traces(source)
    beside = found.prefix.parent / _GROUPS_NAME
    group_file = beside if groups is None and beside.is_file() else groups
    members = read_groups(group_file) if group_file is not None else {}
    used = Vocabulary(groups=set(members))
    for file in found.files.values():
        used.add(read_trace(file))
    disguise = Disguise(secret, level, used)
    files = {npu: f"{_PREFIX}.{npu}.et{'.gz' * (file.suffix == '.gz')}" for npu, file in found.files.items()}
    nodes = operators = 0
    with staged_traces(out, [*files.values(), *([_GROUPS_NAME] * bool(members))], "these traces") as staging:
        for npu, file in found.files.items():
            table = prepare(read_trace(file))
            write_table(staging / files[npu], hidden(table, disguise))
            nodes, operators = nodes + len(table), operators + _with_operators(table)
        if members:
            (staging / _GROUPS_NAME).write_text(_written(members, disguise), encoding="utf-8")
    return _said(out / _PREFIX, len(files), nodes, operators, out / _GROUPS_NAME if members else None)


def _written(members: "dict[str, tuple[int, ...]]", disguise: "Disguise") -> str:
    """A group file, by the numbers that are the groups' names now."""
    named = {disguise.groups[name]: npus for name, npus in members.items()}
    return json.dumps(dict(sorted(named.items(), key=lambda item: int(item[0])))) + "\n"


def _with_operators(table: "TraceTable") -> int:
    """How many nodes say operators and no duration."""
    return int(((table.operators > 0) & (table.duration_micros == 0)).sum())


def _said(out: Path, traces: int, nodes: int, operators: int, groups: Path | None) -> dict[str, object]:
    return {
        "out": str(out),
        "groups": None if groups is None else str(groups),
        "traces": traces,
        "nodes": nodes,
        "operators": operators,
    }

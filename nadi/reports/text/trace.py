"""Text of `nadi trace show`, `check`, `convert`, `slice` and `reduce`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nadi import inputs
from nadi.et import NOT_STRICT
from nadi.et.checking import SEVERITIES, CheckReport, Example, TraceFix
from nadi.et.reshape import ReduceResult, SliceResult
from nadi.inputs.units import PS_PER_US
from nadi.terminal import FittedTable, facts, in_unit, name_column, text_column, time_text, time_unit

_MAX_PARENTS_SHOWN = 6
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_MAX_ROWS = 64


def render(description: dict[str, Any]) -> RenderableType:
    """Return the result of et.describe as something that a rich Console prints.

    Args:
        description: Result of et.describe.
    """
    parts: list[RenderableType] = [description["path"], _overview(description), ""]
    columns = name_column("kind"), name_column("group", 2), "count", "bytes", ("without size", 1)
    table = FittedTable("communication", *columns)
    for row in description["collectives"]:
        table.add_row(row["kind"], row["group"] or "all", *_sizes(row))
    for key in ("sends", "receives"):
        if description[key]["count"]:
            table.add_row(key, "-", *_sizes(description[key]))
    return Group(*parts, table, _first_nodes(description))


def render_set(description: dict[str, Any]) -> RenderableType:
    """Return the result of workload.trace_sets.files.describe_set as something that a rich Console prints.

    Args:
        description: Result of workload.trace_sets.files.describe_set.
    """
    npus, idle, traces = description["npus"], description["idle"], description["traces"]
    of_all = sum(trace["npus"] * trace["nodes"] for trace in traces)
    nodes = f"{_number(sum(trace['nodes'] for trace in traces))} in files, {_number(of_all)} of all NPUs"
    rows = [("NPUs", _number(npus) + (f", {_number(idle)} of them idle" if idle else ""))]
    overview = facts("", [*rows, ("traces", _number(len(traces))), ("nodes", nodes)])
    table = FittedTable("traces", name_column("file"), "NPUs", ("example", 1), "nodes")
    for trace in traces:
        example = "as written" if trace["example"] < 0 else str(trace["example"])
        table.add_row(trace["file"], trace["npus"], example, trace["nodes"])
    families = FittedTable("families of groups", name_column("family"), "groups", "members")
    for name, family in description["families"].items():
        fewest, most = family["fewest_members"], family["most_members"]
        members = _number(most) if fewest == most else f"{_number(fewest)} to {_number(most)}"
        families.add_row(name, family["groups"], members)
    return Group(description["path"], overview, "", table, families)


def _overview(description: dict[str, Any]) -> FittedTable:
    """Return sizes, dependencies and work of a trace."""
    dangling, cycle = description["dangling_dependencies"], description["control_cycle"]
    dropped = _number(description["dropped_control_dependencies"])
    rows = [("schema version", description["version"] or "not said"), ("nodes", _number(description["nodes"]))]
    rows += [(f"  {name}", _number(count)) for name, count in description["node_types"].items()]
    rows += [
        ("host operations", _number(description["cpu_ops"])),
        ("dependencies", _number(description["dependencies"])),
        ("dangling dependencies", f"{_number(dangling)}, on nodes that the file lacks" if dangling else "0"),
        ("control dependencies", f"all {dropped} dropped: they close a cycle, {cycle}" if cycle else "none in a cycle"),
        ("roots", _number(description["roots"])),
        ("depth", f"{_number(description['depth'])} nodes"),
        ("compute time", time_text(description["compute_micros"] * PS_PER_US)),
        ("floating-point operations", _number(description["num_ops"])),
        ("tensor bytes", _number(description["tensor_bytes"])),
    ]
    table = facts("", rows)
    if dangling or cycle:
        table.notes.append(f"nadi run refuses dependencies that dangle or close cycles; {NOT_STRICT}, drops them")
    return table


def _first_nodes(description: dict[str, Any]) -> FittedTable:
    """Return the first nodes of a trace."""
    nodes = description["first_nodes"]
    durations_ps = [node["duration_micros"] * PS_PER_US for node in nodes]
    unit = time_unit(durations_ps)
    columns = name_column("name"), name_column("type", 2), f"duration ({unit.name})", text_column("waits for", 1)
    table = FittedTable("first nodes", "id", *columns)
    for node, duration_ps in zip(nodes, durations_ps, strict=True):
        parents = [str(parent) for parent in node["parents"][:_MAX_PARENTS_SHOWN]]
        more = ["..."] if len(node["parents"]) > _MAX_PARENTS_SHOWN else []
        waits_for = " ".join(parents + more)
        table.add_row(str(node["id"]), shortened(node["name"]), node["type"], in_unit(duration_ps, unit), waits_for)
    return table


def shortened(name: str, longest: int = 40) -> str:
    """Return the name of a node, cut to so many characters for a column of a table.

    Args:
        name: Name of the node.
        longest: Maximum number of characters.
    """
    return name if len(name) <= longest else f"{name[: longest - 3]}..."


def _sizes(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["count"], row["bytes"], row["missing_sizes"]


def _number(value: int) -> str:
    return f"{value:,}"


def render_check(report: CheckReport, max_examples: int, fixes: Sequence[TraceFix] | None) -> RenderableType:
    """Return the fixes, then the findings by sort, the most severe first, with a few examples each.

    Args:
        report: Result of the checks.
        max_examples: Maximum number of examples.
        fixes: Fixes that were made; None = fixing was not asked for.
    """
    lines: list[RenderableType] = []
    for what, count, examples in _by_sort(fixes or ()):
        lines += [Text(f"fixed    {count:,} {what}"), *_examples(examples, count, max_examples)]
    if fixes is not None and not fixes:
        lines.append(Text("fixed    nothing"))
    for group in report.groups:
        head = Text(f"{group.severity:<8} ", style=_STYLES[group.severity])
        head.append(f"{group.check}: {group.count:,} {group.what}", style="none")
        lines += [head, *_examples(group.examples, group.count, max_examples)]
    counts = ", ".join(_counted(report.count(severity), severity) for severity in SEVERITIES)
    size = f"{_counted(report.traces, 'distinct trace')}, {_counted(report.nodes, 'node')}"
    return Group(*lines, Text(inputs.shown(f"{report.path}: {counts}; {size}")))


def _by_sort(fixes: Iterable[TraceFix]) -> list[tuple[str, int, list[Example]]]:
    """Return the fixes of all files, grouped by sort."""
    found: dict[str, tuple[int, list[Example]]] = {}
    for fix in fixes:
        count, examples = found.get(fix.what, (0, []))
        found[fix.what] = count + fix.count, [*examples, *fix.examples]
    return [(what, count, examples) for what, (count, examples) in found.items()]


def _examples(examples: Sequence[Example], count: int, max_examples: int) -> list[RenderableType]:
    """Return a line per example, up to a maximum, and the number of the others among `count`."""
    shown = [Text(f"         {inputs.shown(str(example))}") for example in examples[:max_examples]]
    more = count - len(shown)
    return [*shown, *([Text(f"         and {more:,} more")] if more > 0 and max_examples else [])]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def render_sliced(folder: str, parts: Sequence[SliceResult]) -> FittedTable:
    """Return a table with a row per file of a slice.

    Args:
        folder: Folder of the slice.
        parts: Result for each file.
    """
    nodes = "nodes", "kept", ("for partners", 2), ("without partners", 2)
    dependencies = ("bridged", 1), ("joints", 3), ("dangling", 4)
    table = FittedTable(f"slice in {folder}", name_column("file"), *nodes, *dependencies)
    for part in parts[:_MAX_ROWS]:
        counts = part.nodes, part.kept, part.for_partners, part.without_partners
        table.add_row(part.file.path.name, *counts, part.added, part.joints, part.dangling)
    table.note_more(len(parts) - _MAX_ROWS, "files")
    return table


def render_reduced(folder: str, results: Mapping[str, ReduceResult]) -> FittedTable:
    """Return a table with a row per reduced file.

    Args:
        folder: Folder of the reduced traces.
        results: Result by name of the file.
    """
    nodes = "nodes", "left", ("without time", 2), ("fused", 2)
    dependencies = "dependencies", ("left", 1), ("implied", 3)
    table = FittedTable(f"reduced traces in {folder}", name_column("file"), *nodes, *dependencies)
    for name, result in list(results.items())[:_MAX_ROWS]:
        counts = result.nodes, result.kept, result.dropped, result.fused
        table.add_row(name, *counts, result.dependencies, result.kept_dependencies, result.implied)
    table.note_more(len(results) - _MAX_ROWS, "files")
    kept_all = [name for name, result in results.items() if result.reordered]
    if kept_all:
        table.notes.append(
            f"{kept_all[0]}{f' and {len(kept_all) - 1} more' if len(kept_all) > 1 else ''}: all nodes stay, "
            "because without some of them communications would come in another order"
        )
    return table


def render_converted(result: Mapping[str, Any]) -> FittedTable:
    """Return a table of inputs and outputs, with notes on what the conversion lost.

    Args:
        result: Result of the conversion.
    """
    files = result["files"]
    shown = files[0] if len(files) == 1 else f"{files[0]} .. {files[-1]} ({len(files)} files)"
    rows = [("from", result["from"]), ("to", result["to"]), ("NPUs", str(result["npus"]))]
    rows += [("groups", str(result["groups"]))] if result["groups"] else []
    rows += [("written", f"{result['folder']}/{shown}")]
    table = facts("Converted", rows)
    table.notes.extend(result["notes"])
    return table

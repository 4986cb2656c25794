"""Text of `nadi trace` commands: traces, checks, conversions, slices, reductions and statistics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nadi import inputs, terminal
from nadi.et import NOT_STRICT
from nadi.et.checking import SEVERITIES, CheckReport, Example, TraceFix
from nadi.et.reshape import ReduceResult, SliceResult
from nadi.inputs.units import PS_PER_US
from nadi.terminal import FittedTable, facts, in_unit, name_column, text_column, time_unit

_MAX_PARENTS_SHOWN = 6
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_MAX_ROWS = 64


def trace_report(description: dict[str, Any]) -> RenderableType:
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


def set_report(description: dict[str, Any]) -> RenderableType:
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
        ("compute time", terminal.time_text(description["compute_micros"] * PS_PER_US)),
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


def check_report(report: CheckReport, max_examples: int, fixes: Sequence[TraceFix] | None) -> RenderableType:
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


MAX_OPERATORS = 15
MAX_GROUPS = 15
MAX_RANKS = 32
MAX_COLUMNS = 60
LONGEST_NAME = 48
# Thresholds of the deviation, with style and mark of cells above the mean; cells below the mean use _LESS
_SHADES = ((0.5, "on red", "++"), (0.1, "on dark_orange3", "+"), (0.005, "on yellow4", "."))
_LESS = ("on blue", "on dodger_blue2", "on deep_sky_blue4")


def statistics_report(path: str, statistics: Mapping[str, Any]) -> RenderableType:
    """Return the result of et.statistics.statistics for a path as something that a rich Console prints."""
    communication = collectives_table(statistics, MAX_GROUPS)
    rows = [
        ("NPUs", f"{statistics['ranks']:,}"),
        ("traces", f"{statistics['traces']:,}"),
        ("nodes", f"{statistics['nodes']:,}"),
    ]
    table = facts("", [*rows, ("recorded times", statistics["times"])])
    if statistics["looked_at"] < statistics["ranks"]:
        choice = "one of each distinct trace" if statistics["traces"] < statistics["ranks"] else "evenly spaced"
        analysed = f"collectives one by one, times and the path are those of {statistics['looked_at']:,} NPUs, {choice}"
        table.notes.append(f"{analysed}; --most-nodes looks at more")
    parts: list[RenderableType] = [
        path,
        table,
        "",
        _operators(statistics),
        communication,
        _totals(statistics),
    ]
    parts += [
        *_matrix(statistics["sizes_by_collective"]),
        *_waiting(statistics["arrivals"]),
        *_overlap(statistics["overlap"]),
    ]
    return Group(*parts, *_path(statistics["critical_path"]))


def _operators(statistics: Mapping[str, Any]) -> FittedTable:
    """Return the operators that take most time."""
    numbers = "count", "time", "share", ("FLOPs", 2), ("bytes", 1)
    table = FittedTable("operators", name_column("operator"), name_column("lane", 1), *numbers)
    rows = statistics["operators"]
    total = sum(row["micros"] for row in rows)
    for row in rows[:MAX_OPERATORS]:
        share = f"{row['micros'] / total:.1%}" if total else "-"
        time = terminal.time_text(row["micros"] * PS_PER_US) if row["micros"] else "-"
        flops = f"{row['flops']:.3g}" if row["flops"] else "-"
        name = shortened(row["name"], LONGEST_NAME)
        table.add_row(name, row["lane"], row["count"], time, share, flops, _amount(row["bytes"]))
    table.note_more(len(rows) - MAX_OPERATORS, "operators")
    return table


def collectives_table(statistics: Mapping[str, Any], max_rows: int) -> FittedTable:
    """Return the communication by kind and group.

    Args:
        statistics: Result of et.statistics.statistics.
        max_rows: Maximum number of rows of the table.
    """
    numbers = "count", "bytes", ("minimum", 3), "median", ("maximum", 2), ("sizes", 4)
    table = FittedTable("communication", name_column("kind"), name_column("group", 1), *numbers)
    for row in statistics["collectives"][:max_rows]:
        sizes = [terminal.buffer_text(row[key]) for key in ("least_bytes", "median_bytes", "most_bytes")]
        group = row["group"] or ("-" if row["kind"] in {"sends", "receives"} else "all")
        table.add_row(row["kind"], group, row["count"], _amount(row["bytes"]), *sizes, row["different_sizes"])
    missing = sum(row["missing_sizes"] for row in statistics["collectives"])
    if missing:
        table.notes.append(f"{missing:,} nodes have no size")
    table.note_more(len(statistics["collectives"]) - max_rows, "kinds and groups")
    return table


def _totals(statistics: Mapping[str, Any]) -> FittedTable:
    """Return the bytes of each rank by kind, where ranks differ."""
    matrix = statistics["bytes_by_rank"]
    table = FittedTable("bytes by rank", "NPU", *((kind, rank) for rank, kind in enumerate(matrix["kinds"], 1)))
    worst = matrix["greatest_deviation"]
    if worst is None:
        table.notes.append("no communication")
    elif abs(worst["deviation"]) < 1e-9:
        table.notes.append("all NPUs have equal amounts of each kind")
        # one row stands for all
        matrix = {**matrix, "ranks": matrix["ranks"][:1], "ranks_left_out": 0}
    else:
        table.notes.append(f"most uneven: NPU {worst['npu']}, {worst['kind']}, {worst['deviation']:+.1%} of the mean")
    for npu, sizes, away in list(zip(matrix["ranks"], matrix["bytes"], matrix["deviation"], strict=False))[:MAX_RANKS]:
        cells = [
            "-" if size is None else f"{_amount(size)}{_deviation_text(by)}"
            for size, by in zip(sizes, away, strict=True)
        ]
        table.add_row(str(npu), *cells)
    left_out = matrix["ranks_left_out"] + max(0, len(matrix["ranks"]) - MAX_RANKS)
    if left_out:
        table.notes.append(f"and {left_out:,} more NPUs")
    return table


def _matrix(sizes_by_collective: Mapping[str, Any]) -> list[RenderableType]:
    """Return ranks against collectives: a cell for each, coloured by its deviation from the mean."""
    if not sizes_by_collective["uneven"]:
        return []
    uneven = [
        i for i, _ in enumerate(sizes_by_collective["collectives"]) if _spread(sizes_by_collective["deviation"], i) > 0
    ]
    shown = uneven[:MAX_COLUMNS]
    title = Text("ranks against collectives: how far each member's bytes are from the mean", style="bold")
    lines: list[RenderableType] = [title, ""]
    rows = list(zip(sizes_by_collective["ranks"], sizes_by_collective["deviation"], strict=True))
    width = max((len(str(npu)) for npu, _ in rows), default=1)
    for npu, deviation in rows[:MAX_RANKS]:
        line = Text(f" NPU {npu:>{width}}  ")
        for i in shown:
            line.append(*_cell(deviation[i]))
        lines.append(line)
    lines.append("")
    legend = Text(" ")
    for threshold, style, mark in _SHADES:
        legend.append(f" {mark:>2} ", style)
        legend.append(f" {threshold:+.1%} and more   ")
    lines += [legend, Text("  - and -- the same below the mean, blue; = the mean; blank: no member"), ""]
    worst = max(shown, key=lambda i: _spread(sizes_by_collective["deviation"], i))
    label = sizes_by_collective["collectives"][worst]
    spread = _spread(sizes_by_collective["deviation"], worst)
    named = f'{label["kind"]} {label["number"]} of {label["group"] or "all NPUs"} ("{label["name"]}")'
    uneven_text = f"{sizes_by_collective['uneven']:,} collectives are uneven"
    lines.append(f"{uneven_text}; the largest deviation: {named}, {spread:.1%} from the mean")
    hidden_rows = sizes_by_collective["ranks_left_out"] + max(0, len(rows) - MAX_RANKS)
    if len(uneven) > len(shown) or hidden_rows or sizes_by_collective["uneven"] > len(uneven):
        lines.append(f"shown are {len(shown)} of them, and all NPUs but {hidden_rows:,}; -o FILE.html has more")
    return [*lines, ""]


def _waiting(arrivals: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return the table of transfer and waiting of collectives by kind; none without times."""
    if arrivals is None:
        return []
    numbers = "count", "transfer", "median", "waiting", ("median skew", 1), ("maximum skew", 1)
    title = "collectives with times: transfer, and waiting for others"
    table = FittedTable(title, name_column("kind"), name_column("group", 2), *numbers)
    for row in arrivals["kinds"][:MAX_GROUPS]:
        times = [row[key] for key in ("transfer_micros", "median_transfer_micros", "waiting_micros")]
        times += [row.get("median_skew_micros"), row.get("greatest_skew_micros")]
        cells = ["-" if time is None else terminal.time_text(time * PS_PER_US) for time in times]
        table.add_row(row["kind"], row["group"] or "all", row["count"], *cells)
    latest = max(arrivals["ranks"], key=lambda rank: rank["late"])
    table.notes.append(f"NPU {latest['npu']} is most often the last, {latest['late']:,} times")
    if not arrivals["clock"]:
        table.notes.append("no starts are recorded: the last NPU is the one with the shortest wait")
    return [table]


def _overlap(rows: Sequence[Mapping[str, Any]] | None) -> list[RenderableType]:
    """Return the table of compute and communication of each rank; none without start times."""
    if not rows:
        return []
    unit = time_unit([row["span_micros"] * PS_PER_US for row in rows])
    columns = "NPU", "span", "compute", "communication", "both", ("exposed", 1), "idle"
    table = FittedTable(f"overlap ({unit.name})", *columns)
    keys = ("span", "compute", "communication", "overlap", "exposed", "idle")
    for row in rows[:MAX_RANKS]:
        cells = [in_unit(row[f"{key}_micros"] * PS_PER_US, unit) for key in keys]
        table.add_row(str(row["npu"]), *cells)
    table.note_more(len(rows) - MAX_RANKS, "NPUs")
    return [table]


def _path(path: Mapping[str, Any] | None) -> list[RenderableType]:
    """Return tables of the critical path and its longest nodes; none without durations."""
    if path is None:
        return []
    title = f"critical path across ranks: {terminal.time_text(path['micros'] * PS_PER_US)}, {path['nodes']:,} nodes"
    total = max(path["micros"], 1)
    lanes = [
        (lane, f"{terminal.time_text(us * PS_PER_US)}, {us / total:.1%}") for lane, us in path["by_lane"].items() if us
    ]
    npus = ", ".join(f"NPU {npu} {us / total:.1%}" for npu, us in list(path["by_rank"].items())[:8])
    table = FittedTable("its longest nodes", "NPU", name_column("name"), name_column("lane", 1), "start", "time")
    for step in path["steps"]:
        times = [terminal.time_text(step[key] * PS_PER_US) for key in ("start_micros", "micros")]
        table.add_row(str(step["npu"]), shortened(step["name"], LONGEST_NAME), step["lane"], *times)
    if path["unfinished"]:
        reason = "their partners lack a counterpart in these traces"
        table.notes.append(f"{path['unfinished']:,} nodes never start: {reason}")
    return [facts(title, [*lanes, ("on", npus)]), "", table]


def _cell(deviation: float | None) -> tuple[str, str]:
    """Return text and style of a cell with a relative deviation from the mean; None = no member."""
    if deviation is None:
        return "   ", ""
    for (threshold, style, mark), less in zip(_SHADES, _LESS, strict=True):
        if abs(deviation) >= threshold:
            return (f"{mark:>2} ", style) if deviation > 0 else (f"{mark.replace('+', '-'):>2} ", less)
    return " = ", ""


def _spread(deviation: Sequence[Sequence[float | None]], column: int) -> float:
    return max((abs(row[column] or 0) for row in deviation), default=0.0)


def _deviation_text(deviation: float | None) -> str:
    return f" ({deviation:+.1%})" if deviation is not None and abs(deviation) >= 5e-4 else ""


def _amount(size: int) -> str:
    return terminal.amount_text(size) if size else "-"

"""Text of `nadi trace show` for a trace or a trace set."""

from typing import Any

from rich.console import Group, RenderableType

from et.errors import NOT_STRICT
from inputs.units import PS_PER_US
from nadi.terminal.readable import in_unit, time_text, time_unit
from nadi.terminal.tables import FittedTable, facts, name_column, text_column

_MAX_PARENTS_SHOWN = 6


def render(description: dict[str, Any]) -> RenderableType:
    """Return the result of et.describe as something that a rich Console prints."""
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
    """Return the result of workload.trace_sets.files.describe_set as something that a rich Console prints."""
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
    """Return the name of a node, cut to so many characters for a column of a table."""
    return name if len(name) <= longest else f"{name[: longest - 3]}..."


def _sizes(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["count"], row["bytes"], row["missing_sizes"]


def _number(value: int) -> str:
    return f"{value:,}"

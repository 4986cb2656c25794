"""Text of `nadi trace show` for a trace or a trace set."""

from typing import Any

from rich.console import Group, RenderableType

from et.errors import NOT_STRICT
from inputs.units import PS_PER_US
from nadi.terminal.readable import in_unit, time_text, time_unit
from nadi.terminal.tables import FittedTable, TableColumn, facts

_MAX_PARENTS_SHOWN = 6
_LONGEST_NAME = 40


def render(description: dict[str, Any]) -> RenderableType:
    """Return the result of et.describe as something that a rich Console prints."""
    parts: list[RenderableType] = [description["path"], _overview(description), ""]
    return Group(*parts, _communication(description), _first_nodes(description))


def render_set(description: dict[str, Any]) -> RenderableType:
    """Return the result of workload.trace_sets.files.describe_set as something that a rich Console prints."""
    npus, idle, traces = description["npus"], description["idle"], description["traces"]
    of_all = sum(trace["npus"] * trace["nodes"] for trace in traces)
    nodes = f"{_number(sum(trace['nodes'] for trace in traces))} in files, {_number(of_all)} of all NPUs"
    rows = [("NPUs", _number(npus) + (f", {_number(idle)} of them idle" if idle else ""))]
    overview = facts("", [*rows, ("traces", _number(len(traces))), ("nodes", nodes)])
    columns = TableColumn("file", form="name"), "NPUs", TableColumn("example", 1), "nodes"
    table = FittedTable("traces", *columns)
    for trace in traces:
        example = "as written" if trace["example"] < 0 else str(trace["example"])
        table.add_row(trace["file"], _number(trace["npus"]), example, _number(trace["nodes"]))
    families = FittedTable("families of groups", TableColumn("family", form="name"), "groups", "members")
    for name, family in description["families"].items():
        fewest, most = family["fewest_members"], family["most_members"]
        members = _number(most) if fewest == most else f"{_number(fewest)} to {_number(most)}"
        families.add_row(name, _number(family["groups"]), members)
    return Group(description["path"], overview, "", table, families)


def _overview(description: dict[str, Any]) -> FittedTable:
    rows = [("schema version", description["version"] or "not said"), ("nodes", _number(description["nodes"]))]
    rows += [(f"  {name}", _number(count)) for name, count in description["node_types"].items()]
    rows += [
        ("host operations", _number(description["cpu_ops"])),
        ("dependencies", _number(description["dependencies"])),
        ("dangling dependencies", _dangling(description["dangling_dependencies"])),
        ("control dependencies", _control(description)),
        ("roots", _number(description["roots"])),
        ("depth", f"{_number(description['depth'])} nodes"),
        ("compute time", time_text(description["compute_micros"] * PS_PER_US)),
        ("floating-point operations", _number(description["num_ops"])),
        ("tensor bytes", _number(description["tensor_bytes"])),
    ]
    table = facts("", rows)
    if description["dangling_dependencies"] or description["control_cycle"]:
        table.notes.append(f"nadi run refuses dependencies that dangle or close cycles; {NOT_STRICT}, drops them")
    return table


def _dangling(count: int) -> str:
    return f"{_number(count)}, on nodes that the file lacks" if count else "0"


def _control(description: dict[str, Any]) -> str:
    """Return a description of cycles of control dependencies."""
    if not description["control_cycle"]:
        return "none in a cycle"
    dropped = _number(description["dropped_control_dependencies"])
    return f"all {dropped} dropped: they close a cycle, {description['control_cycle']}"


def _communication(description: dict[str, Any]) -> FittedTable:
    columns = (
        TableColumn("kind", form="name"),
        TableColumn("group", 2, "name"),
        "count",
        "bytes",
        TableColumn("without size", 1),
    )
    table = FittedTable("communication", *columns)
    for row in description["collectives"]:
        table.add_row(row["kind"], row["group"] or "all", *_sizes(row))
    for key in ("sends", "receives"):
        if description[key]["count"]:
            table.add_row(key, "-", *_sizes(description[key]))
    return table


def _first_nodes(description: dict[str, Any]) -> FittedTable:
    nodes = description["first_nodes"]
    durations_ps = [node["duration_micros"] * PS_PER_US for node in nodes]
    unit = time_unit(durations_ps)
    table = FittedTable(
        "first nodes",
        "id",
        TableColumn("name", form="name"),
        TableColumn("type", 2, "name"),
        TableColumn(f"duration ({unit.name})"),
        TableColumn("waits for", 1, "text"),
    )
    for node, duration_ps in zip(nodes, durations_ps, strict=True):
        parents = [str(parent) for parent in node["parents"][:_MAX_PARENTS_SHOWN]]
        more = ["..."] if len(node["parents"]) > _MAX_PARENTS_SHOWN else []
        waits_for = " ".join(parents + more)
        table.add_row(str(node["id"]), _shortened(node["name"]), node["type"], in_unit(duration_ps, unit), waits_for)
    return table


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _sizes(row: dict[str, Any]) -> tuple[str, str, str]:
    return _number(row["count"]), _number(row["bytes"]), _number(row["missing_sizes"])


def _number(value: int) -> str:
    return f"{value:,}"

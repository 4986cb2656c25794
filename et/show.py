"""The summary of a trace as tables on a terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_MOST_PARENTS_SHOWN = 6


def render(description: dict[str, Any]) -> RenderableType:
    """The result of et.describe as something that a rich Console prints."""
    return Group(
        Text(description["path"]), _overview(description), _communication(description), _first_nodes(description)
    )


def _overview(description: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("schema version", escape(description["version"]) or "-")
    table.add_row("nodes", _number(description["nodes"]))
    for name, count in description["node_types"].items():
        table.add_row(f"  {name}", _number(count))
    for key, label in (
        ("cpu_ops", "host operations"),
        ("dependencies", "dependencies"),
        ("dangling_dependencies", "dangling dependencies"),
        ("dropped_control_dependencies", "dropped control dependencies"),
        ("roots", "roots"),
        ("depth", "depth (nodes)"),
        ("compute_micros", "compute time (µs)"),
        ("num_ops", "floating-point operations"),
        ("tensor_bytes", "tensor bytes"),
    ):
        table.add_row(label, _number(description[key]))
    return table


def _communication(description: dict[str, Any]) -> Table:
    table = Table(title="communication", title_justify="left")
    table.add_column("kind")
    table.add_column("group")
    for heading in ("count", "bytes", "without size"):
        table.add_column(heading, justify="right")
    for row in description["collectives"]:
        table.add_row(row["kind"], escape(row["group"]) or "all", *_sizes(row))
    for key in ("sends", "receives"):
        if description[key]["count"]:
            table.add_row(key, "-", *_sizes(description[key]))
    return table


def _first_nodes(description: dict[str, Any]) -> Table:
    table = Table(title="first nodes", title_justify="left")
    table.add_column("id", justify="right")
    table.add_column("name", overflow="ellipsis", no_wrap=True, max_width=40)
    table.add_column("type", no_wrap=True)
    table.add_column("µs", justify="right")
    table.add_column("waits for")
    for node in description["first_nodes"]:
        parents = [str(parent) for parent in node["parents"][:_MOST_PARENTS_SHOWN]]
        more = ["..."] if len(node["parents"]) > _MOST_PARENTS_SHOWN else []
        micros = _number(node["duration_micros"])
        table.add_row(str(node["id"]), escape(node["name"]), node["type"], micros, " ".join(parents + more))
    return table


def _sizes(row: dict[str, Any]) -> tuple[str, str, str]:
    return _number(row["count"]), _number(row["bytes"]), _number(row["missing_sizes"])


def _number(value: int) -> str:
    return f"{value:,}"

"""`nadi trace select`: a few traces that stand for many."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from et.selection import Coverage, TraceSelection

_WHERE = "Folders, looked through to the bottom, or files: traces and trace sets."
_RADIUS = "Coverage counts traces that have a chosen one within so many deviations."
_EACH = "What is chosen: trace (files; in sets counted for each NPU) or folder (all its traces together)."


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command()(select)


class _Item(NamedTuple):
    """What may be chosen: a path, its traces and for how many NPUs each counts."""

    path: Path
    files: list[Path]
    many: list[int]


def select(
    where: list[Path] = typer.Argument(metavar="DIR|FILE...", help=_WHERE),
    k: int = typer.Option(..., "-k", min=1, metavar="N", help="How many to choose."),
    each: str = typer.Option("trace", metavar="WHAT", help=_EACH),
    radius: float = typer.Option(0.5, min=0, help=_RADIUS),
    seed: int = typer.Option(0, min=0, help="Of samples and of the draws that the choice is compared with."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Choose traces that stand for all: by features and clusters, with weights, and how well they cover the rest."""
    import numpy as np

    from et import TraceError
    from et.selection import choose, coverage
    from nadi.terminal.tables import console

    if each not in {"trace", "folder"}:
        raise TraceError(f"--each {each}: expected trace or folder")
    items = _by_trace(where) if each == "trace" else _by_folder(where)
    if not items:
        raise TraceError(f"{where[0]}: no traces, expected files .et or .et.gz there or below")
    rows, sums = _measured(items)
    many = np.array([sum(item.many) if each == "trace" else 1 for item in items], np.float64)
    choice = choose(rows, many, k, seed)
    found = coverage(choice, radius, seed)
    estimates = {
        name: (float(np.average(sums[:, i], weights=many)), float(choice.weights @ sums[choice.chosen, i]))
        for i, name in enumerate(("nodes", "communicated_bytes", "compute_micros"))
    }
    said = _document(items, choice, found, estimates)
    if as_json:
        typer.echo(json.dumps(said, indent=2))
    else:
        console().print(_table(said))


def _measured(items: list[_Item]) -> "tuple[Any, Any]":
    """float64[items, features], and float64[items, 3]: nodes, bytes and microseconds, all as means over NPUs."""
    import numpy as np

    from et import NodeType, read_trace
    from et.selection import features

    rows, sums = [], []
    for item in items:
        own_rows, own_sums = [], []
        for file in item.files:
            table = read_trace(file, strict=False)
            own_rows.append(features(table))
            micros = table.duration_micros[table.type == NodeType.COMP_NODE].sum()
            own_sums.append([len(table), table.comm_size[table.comm_size > 0].sum(), micros])
        rows.append(np.average(own_rows, axis=0, weights=item.many))
        sums.append(np.average(own_sums, axis=0, weights=item.many))
    return np.array(rows), np.array(sums, np.float64)


def _by_trace(where: list[Path]) -> list[_Item]:
    return [_Item(file, [file], [many]) for _, file, many in _found(where)]


def _by_folder(where: list[Path]) -> list[_Item]:
    items: dict[Path, _Item] = {}
    for folder, file, many in _found(where):
        item = items.setdefault(folder, _Item(folder, [], []))
        item.files.append(file)
        item.many.append(many)
    return list(items.values())


def _found(where: list[Path]) -> Iterator[tuple[Path, Path, int]]:
    """Folder, file and number of NPUs of each trace, each once."""
    from et import TraceError

    seen: set[Path] = set()
    for path in where:
        if not path.exists():
            raise TraceError(f"{path}: no such file or folder, expected traces")
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if _is_trace(file))
        npus: dict[Path, dict[str, int]] = {}
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            if file.parent not in npus:
                npus[file.parent] = _npus_of_set(file.parent)
            yield file.parent, file, npus[file.parent].get(file.name, 1)


def _is_trace(file: Path) -> bool:
    return file.name.endswith((".et", ".et.gz")) and file.is_file()


def _npus_of_set(folder: Path) -> dict[str, int]:
    """How many NPUs run each file of a trace set; nothing for other folders."""
    from workload.trace_sets.files import describe_set, is_set

    return {trace["file"]: trace["npus"] for trace in describe_set(folder)["traces"]} if is_set(folder) else {}


def _document(
    items: list[_Item], choice: "TraceSelection", found: "Coverage", estimates: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    chosen = []
    for number, row in enumerate(choice.chosen.tolist()):
        own = choice.representative == number
        farthest = float(choice.distance[own].max())
        weight = float(choice.weights[number])
        chosen.append({"path": str(items[row].path), "weight": weight, "items": int(own.sum()), "farthest": farthest})
    return {
        "items": len(items),
        "chosen": chosen,
        "coverage": dataclasses.asdict(found),
        "means": {name: {"all": of_all, "chosen": of_chosen} for name, (of_all, of_chosen) in estimates.items()},
    }


def _table(said: dict[str, Any]) -> Any:  # noqa: ANN401 - what rich prints
    from rich.console import Group

    from nadi.terminal.tables import FittedTable, TableColumn, facts

    table = FittedTable("", TableColumn("trace", form="name"), "weight", "stands for", TableColumn("farthest", 1))
    for row in said["chosen"]:
        table.add_row(row["path"], f"{row['weight']:.1%}", f"{row['items']:,}", f"{row['farthest']:.2f}")
    found = said["coverage"]
    rows = [
        ("distance", f"{found['mean']:.3f} in the mean, {found['random_mean']:.3f} if chosen by chance"),
        ("", f"{found['median']:.3f} of half of them, {found['p90']:.3f} of 90 %, {found['farthest']:.3f} at most"),
        (f"within {found['radius']:g}", f"{found['within']:.1%} of all"),
    ]
    for name, means in said["means"].items():
        rows.append((name.replace("_", " "), f"{means['all']:,.0f} in the mean, {means['chosen']:,.0f} by the chosen"))
    return Group(f"{len(said['chosen'])} of {said['items']:,}", "", table, facts("", rows))

"""`nadi trace select`: choose a few representative traces."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from nadi.cli.options import AsJson
from nadi.cli.output import print_document

if TYPE_CHECKING:
    from nadi.et.selection import Coverage, TraceSelection

_WHERE = "Files, or folders that are searched recursively: traces and trace sets."
_RADIUS = "Distance in standard deviations within which a chosen trace covers others."
_EACH = "Unit of choice: trace (files; those of trace sets weighted by their NPUs) or folder (all its traces)."


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

    from nadi.terminal import FittedTable, facts, name_column

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

"""Which settings of runs differ."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from nadi.insight.runs import Run

_PLACES = ("output.dir",)
"""Keys that differ between any two runs and say nothing of them."""


def differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Keys of the settled configurations whose values are not the same in all runs.

    Returns:
        A row for each: `key`, as `--set` takes it; `values`, one for each run, None = the run has no such key; and
        `is_derived`: no run named the key, so that its value follows from those that were named (a cluster's rates, a
        window from a delay). Keys that were named come first, then derived ones, settled ones as settled.KEY, and the
        version of Nadi.
    """
    found = [dict(_of(run)) for run in runs]
    named = {key for run in runs for key in run.summary.get("named", ())} | {"version"}
    keys = dict.fromkeys(key for settings in found for key in settings)
    rows = []
    for key in keys:
        values = [settings.get(key) for settings in found]
        if key not in _PLACES and any(value != values[0] for value in values):
            rows.append({"key": key, "values": values, "is_derived": not _is_named(key, named)})
    if all(row["is_derived"] for row in rows):  # then nothing else says why the runs differ
        rows = [row | {"is_derived": False} for row in rows]
    return sorted(rows, key=lambda row: bool(row["is_derived"]))


def _is_named(key: str, named: Collection[str]) -> bool:
    """Return whether a key, or a table or list that it is part of, was named."""
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in named)


def _of(run: Run) -> Iterator[tuple[str, Any]]:
    yield from _flat("", run.summary.get("config", {}))
    yield from _flat("settled.", run.summary.get("settled", {}))
    yield "version", run.summary.get("version")


def _flat(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Tables as dotted keys; lists of faults and the like by their place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path and not path.endswith(".") else f"{path}{key}", inner)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for place, inner in enumerate(value):
            yield from _flat(f"{path}[{place}]", inner)
    else:
        yield path, value

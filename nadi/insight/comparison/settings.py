"""Settings that differ between runs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from nadi.insight.runs import Run

_IRRELEVANT = ("output.dir",)  # keys that differ between any two runs and do not affect the results


def differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the keys of the settled configurations whose values differ between runs.

    Returns:
        A row per key: `key`, as `--set` takes it; `values`, one per run, None where the run lacks the key; and
        `is_derived`: no run file sets the key, so that its value follows from other keys (a cluster's rates, a window
        from a delay). Keys that a run file sets come first, then derived keys, settled values (settled.KEY), and the
        version of Nadi.
    """
    found = [dict(_of(run)) for run in runs]
    named = {key for run in runs for key in run.summary.get("named", ())} | {"version"}
    keys = dict.fromkeys(key for settings in found for key in settings)
    rows = []
    for key in keys:
        values = [settings.get(key) for settings in found]
        if key not in _IRRELEVANT and any(value != values[0] for value in values):
            rows.append({"key": key, "values": values, "is_derived": not _is_named(key, named)})
    if all(row["is_derived"] for row in rows):  # these are then the only explanation of the difference
        rows = [row | {"is_derived": False} for row in rows]
    return sorted(rows, key=lambda row: bool(row["is_derived"]))


def _is_named(key: str, named: Collection[str]) -> bool:
    """Return whether the run file sets the key, or a table or list that contains it."""
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in named)


def _of(run: Run) -> Iterator[tuple[str, Any]]:
    yield from _flat("", run.summary.get("config", {}))
    yield from _flat("settled.", run.summary.get("settled", {}))
    yield "version", run.summary.get("version")


def _flat(path: str, value: object) -> Iterator[tuple[str, Any]]:
    """Yield tables as dotted keys, and lists of tables (such as faults) with their index."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path and not path.endswith(".") else f"{path}{key}", inner)
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for place, inner in enumerate(value):
            yield from _flat(f"{path}[{place}]", inner)
    else:
        yield path, value

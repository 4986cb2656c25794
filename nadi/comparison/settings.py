"""Which settings of runs differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nadi.runs import Run

_PLACES = ("output.dir",)
"""Keys that differ between any two runs and say nothing of them."""


def differing_settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Keys of the settled configurations whose values are not the same in all runs.

    Returns:
        A row for each: `key`, as `--set` takes it, and `values`, one for each run; None = the run has no such key.
        What a run settled from the fabric stands behind, as settled.KEY; then the version of Nadi.
    """
    found = [dict(_of(run)) for run in runs]
    keys = dict.fromkeys(key for settings in found for key in settings)
    rows = ({"key": key, "values": [settings.get(key) for settings in found]} for key in keys if key not in _PLACES)
    return [row for row in rows if any(value != row["values"][0] for value in row["values"])]


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

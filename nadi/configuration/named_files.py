"""Metadata of a key's field, which declares that the key's value names files.

The declaration has two uses: a run file's relative paths count from its folder, and `input_files` lists and hashes the
files that a configuration reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import topologies
import workload

Change = Callable[[str], str]  # function that returns the replacement of a path


def _itself(path: Path) -> Sequence[Path]:
    return [path]


@dataclass(frozen=True)
class NamesFiles:
    """Declaration that the value of a key names files."""

    # function of a value and a `Change`; it returns the value with each of its paths changed
    change: Callable[[Any, Change], Any]
    # function of one such path; it returns the files that a run reads for it
    files: Callable[[Path], Sequence[Path]] = _itself


def _path(value: Path | None, change: Change) -> Path | None:
    return None if value is None else Path(change(str(value)))


def _path_or_word(*words: str) -> Callable[[str, Change], str]:
    return lambda value, change: value if value in words else change(value)


def _if_file(value: str | None, change_path: Change) -> str | None:
    """Return `change_path(value)` if that file exists, else the value, a name of the library."""
    if value is None:
        return None
    changed = change_path(value)
    return changed if Path(changed).is_file() else value


def _by_ending(*endings: str) -> Callable[[str | None, Change], str | None]:
    """Return a function that changes values with one of these endings, which are paths; others are library names."""
    return lambda value, change: change(value) if value is not None and Path(value).suffix in endings else value


def _each(change_value: Callable[[Any, Change], Any]) -> Callable[[Sequence[Any], Change], tuple[Any, ...]]:
    return lambda values, change: tuple(change_value(value, change) for value in values)


def _spec(spec: str | None, change_path: Change) -> str | None:
    """Apply a change to the paths in the specification of a fabric or cluster; names of the library stay."""
    if spec is None:
        return None
    changed = topologies.with_paths(spec, change_path)
    if changed is not None:
        return changed
    name, colon, rest = spec.strip().partition(":")
    is_toml = Path(name).suffix == ".toml"  # a fabric, or a cluster with parameters
    return f"{_if_file(name, change_path)}{colon}{rest}" if is_toml else _if_file(spec.strip(), change_path)


def _cluster(spec: str | None, change_path: Change) -> str | None:
    """Apply a change to the path of a cluster file, perhaps with parameters, "mine.toml:gpus=8"; names stay."""
    name, colon, rest = (spec or "").partition(":")
    return change_path(name) + colon + rest if Path(name).suffix == ".toml" else spec


def _params(value: Mapping[str, Any], change: Change) -> dict[str, Any]:
    paths = topologies.path_parameters()
    return {key: change(str(entry)) if key in paths else entry for key, entry in value.items()}


def _algorithms(value: Mapping[str, str], change: Change) -> dict[str, str]:
    return {kind: workload.with_path(spec, change) for kind, spec in value.items()}


def _results(folder: Path) -> Sequence[Path]:
    return [folder / "summary.json", folder / "links.parquet"]


PLACEMENT_ENDING = ".txt"  # of a file that holds the NPUs of a job


def _placement(value: str | Sequence[int], change: Change) -> str | Sequence[int]:
    """Return the placement of a job with its path changed, if it names a file."""
    return change(value) if isinstance(value, str) and value.endswith(PLACEMENT_ENDING) else value


FILE = NamesFiles(_path)
SIZES = NamesFiles(_if_file)
PLACEMENT = NamesFiles(_placement)
TRACES = NamesFiles(_path, workload.files_of_traces)
MODEL = NamesFiles(_if_file)
SPEC = NamesFiles(_spec)
CLUSTER = NamesFiles(_cluster)
PARAMS = NamesFiles(_params)
ALGORITHMS = NamesFiles(_algorithms, workload.custom_files)
GPU = NamesFiles(_by_ending(".toml"))
CONTROL = NamesFiles(_by_ending(".py"))
TABLES = NamesFiles(_each(_by_ending(".csv", ".parquet")))
OUTPUT_FOLDER = NamesFiles(_path, lambda _: [])


def results_or(*words: str) -> NamesFiles:
    """Return the declaration of a key whose value is the folder of an earlier run, or one of these words."""
    return NamesFiles(_path_or_word(*words), _results)

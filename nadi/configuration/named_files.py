"""Metadata of a key's field, which declares that the key's value names files.

The declaration has two uses: a run file's relative paths count from its folder, and `input_files` lists and hashes the
files that a configuration reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nadi import topologies, workload
from nadi.inputs import plug_ins
from nadi.workload.collectives.custom import custom_files
from nadi.workload.generators.training import ParallelPlan
from nadi.workload.trace_sets import files_of_traces

Change = Callable[[str], str]  # function that returns the replacement of a path


def _itself(path: Path) -> Sequence[Path]:
    return [path]


def _none(_value: object) -> Sequence[Path]:
    return []


@dataclass(frozen=True)
class NamesFiles:
    """Declaration that the value of a key names files."""

    # function of a value and a `Change`; it returns the value with each of its paths changed
    change: Callable[[Any, Change], Any]
    # function of one such path; it returns the files that a run reads for it
    files: Callable[[Path], Sequence[Path]] = _itself
    # function of a value; it returns the files of plug-ins of installed packages that the value names
    installed: Callable[[Any], Sequence[Path]] = _none
    is_plug_in: bool = False  # whether validation reads the files, so that their paths must be absolute before


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


def _plug_in(kind: str) -> NamesFiles:
    """Return the declaration of a key that names a plug-in of a kind, perhaps with parameters: "mine.py:npus=8"."""
    return NamesFiles(
        lambda text, change: plug_ins.with_path(kind, text, change) if isinstance(text, str) else text,
        installed=lambda text: _installed(kind, text),
        is_plug_in=True,
    )


def _installed(kind: str, text: str | None) -> Sequence[Path]:
    file = plug_ins.outside_file(kind, text.partition(":")[0].strip()) if text else None
    return [] if file is None else [file]


def _plan(plan: Any, change: Change) -> Any:  # noqa: ANN401 - a plan, or its text or table
    """Apply a change to the path of a plan's pipeline schedule."""
    if isinstance(plan, ParallelPlan):
        return plan.model_copy(update=_plan({"schedule": plan.schedule}, change))
    if isinstance(plan, dict) and isinstance(plan.get("schedule"), str):
        return plan | {"schedule": plug_ins.with_path(SCHEDULE, plan["schedule"], change)}
    if isinstance(plan, str):
        parts = [part.rpartition("=") for part in plan.split(",")]
        return ",".join(key + equals + plug_ins.with_path(SCHEDULE, value, change) for key, equals, value in parts)
    return plan


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
TRACES = NamesFiles(_path, files_of_traces)
MODEL = NamesFiles(_if_file, installed=lambda name: _installed("model", name))
SPEC = NamesFiles(_spec, installed=lambda spec: _installed("topology", spec))
TOPOLOGY = _plug_in("topology")
CLUSTER = _plug_in("cluster")
PARAMS = NamesFiles(_params)
SCHEDULE = "pipeline schedule"
PLAN = NamesFiles(_plan, installed=lambda plan: _installed(SCHEDULE, plan and plan.schedule), is_plug_in=True)
ALGORITHMS = NamesFiles(
    _algorithms,
    custom_files,
    lambda specs: [file for spec in specs.values() for file in _installed("collective algorithm", spec)],
)
GPU = _plug_in("GPU")
CONTROL = _plug_in("congestion control")
BALANCING = _plug_in("load balancing")
DISCIPLINE = _plug_in("switch discipline")
FIDELITY = _plug_in("network model")
PARTITIONER = _plug_in("partition method")
TABLES = NamesFiles(_each(_by_ending(".csv", ".parquet")))
OUTPUT_FOLDER = NamesFiles(_path, lambda _: [])


def naming_keys(section: type[BaseModel]) -> dict[str, NamesFiles]:
    """Return the keys of a section that name files, with their declarations."""
    return {
        key: marker
        for key, field in section.model_fields.items()
        for marker in field.metadata
        if isinstance(marker, NamesFiles)
    }


def with_paths(section: BaseModel, change: Change) -> BaseModel:
    """Return a section, and sections in it, with a change applied to each path that it names."""
    keys = naming_keys(type(section))
    values: dict[str, Any] = {key: marker.change(getattr(section, key), change) for key, marker in keys.items()}
    values |= {key: with_paths(inner, change) for key, inner in section if isinstance(inner, BaseModel)}
    return section.model_copy(update=values) if values else section


def results_or(*words: str) -> NamesFiles:
    """Return the declaration of a key whose value is the folder of an earlier run, or one of these words."""
    return NamesFiles(_path_or_word(*words), _results)

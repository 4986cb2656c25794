"""Host execution traces and Kineto traces of PyTorch, for all ranks of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nadi.et.pytorch import convert, kineto
from nadi.et.table import TraceTables

TITLE = "host execution traces and Kineto traces of PyTorch, JSON"
OPTIONS = {"step": "number of a ProfilerStep, or all; by default the last one that all ranks have"}


def recognises(path: Path) -> bool:
    """Return whether the path is a trace of PyTorch, or a folder with some.

    Args:
        path: The path of a file or folder.
    """
    if not path.is_dir():
        return bool(kineto.kind_of(path))
    return any(kineto.kind_of(file) for file in sorted(path.rglob("*.json*")) if not file.name.startswith("."))


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """Return the traces of a run of PyTorch.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name.
    """
    return convert(paths, options.get("step", ""))

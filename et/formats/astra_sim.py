"""Workloads of layers of ASTRA-sim 1.0, with all of its policies of parallelism."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nadi.et.formats import simai
from nadi.et.layers import LAYER_OPTIONS, Dialect, first_words, traces_of_layers
from nadi.et.table import TraceTables

TITLE = "a workload of layers of ASTRA-sim 1.0"
OPTIONS = LAYER_OPTIONS
_DIALECT = Dialect(min_forward_bytes=0, gather_total=False)


def recognises(path: Path) -> bool:
    """Return whether the path is a file of layers that is not SimAI's.

    Args:
        path: The path of a file or folder.
    """
    return bool(first_words(path)) and not simai.recognises(path)


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """Return the traces of a file of layers.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name: npus is the number of NPUs.
    """
    return traces_of_layers(paths, options, _DIALECT)

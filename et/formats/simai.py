"""Workloads of layers that AICB makes for SimAI: HYBRID_TRANSFORMER_FWD_IN_BCKWD with groups of experts and stages.

Source: SimAI, astra-sim-alibabacloud/astra-sim/workload/Workload.cc; AICB, SimAI_training_workload_generator.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nadi.et.layers import LAYER_OPTIONS, Dialect, first_words, traces_of_layers
from nadi.et.table import TraceTables

TITLE = "a workload of layers of SimAI (AICB)"
OPTIONS = LAYER_OPTIONS
DIALECT = Dialect(min_forward_bytes=4096, gather_total=True)


def recognises(path: Path) -> bool:
    """Return whether the path is a file of layers with the policy that AICB writes.

    Args:
        path: The path of a file or folder.
    """
    return first_words(path)[:1] == ["HYBRID_TRANSFORMER_FWD_IN_BCKWD"]


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """Return the traces of a file of layers.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name: npus is the number of NPUs if the file has no all_gpus.
    """
    return traces_of_layers(paths, options, DIALECT)

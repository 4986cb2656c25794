"""Workloads of ASTRA-sim: Chakra traces PREFIX.<npu>.et, layers of ASTRA-sim 1.0, and communicator groups.

Source: astra-sim/astra-sim, workload/Workload.cc.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.errors import ConfigError
from nadi.et import TraceTable, read_groups, read_trace
from nadi.et.formats import astra_sim
from nadi.importers.file_sections import FileSections
from nadi.workload import TraceSet
from nadi.workload.trace_sets import TRACE_ENDINGS, files_of_traces, users_of_contents

NO_GROUPS = "empty"


def read_workload(prefix: str, npus: int) -> FileSections:
    """Return the traces that a prefix names, one file for each of the NPUs; ConfigError if one is missing.

    ASTRA-sim appends the NPU's number and ".et" to the text, even if a folder or a file has that name, and ignores
    traces of further NPUs. A file of layers of ASTRA-sim 1.0 is converted in memory.
    """
    named = (_trace(f"{prefix}.{npu}") for npu in range(npus))
    found = [file for file in itertools.takewhile(lambda file: file is not None, named) if file is not None]
    if len(found) == npus:
        is_plain = set(files_of_traces(Path(prefix))) == set(found)
        workload: dict[str, Any] = {"traces": prefix} if is_plain else {"trace_set": _trace_set(found)}
    elif not found and astra_sim.recognises(Path(prefix)):
        layers = astra_sim.read([Path(prefix)], {"npus": str(npus)})
        tables = [layers.tables[npu] for npu in range(npus)]
        workload = {"trace_set": TraceSet.of(tables, layers.groups)}
    else:
        kind = inputs.kind_of(prefix)
        hint = f"; {prefix} is {kind.words}" if kind else ""
        missing = f"{prefix}.{len(found)}.et"
        raise ConfigError(f"{missing}: no such file{hint}; expected the prefix of traces of {npus} NPUs")
    return FileSections({"workload": workload})


def _trace(name: str) -> Path | None:
    """Return the file of a trace by its name without ending, None if there is none."""
    try:
        return next((path for end in TRACE_ENDINGS if (path := Path(name + end)).is_file()), None)
    except (OSError, ValueError):
        return None


def _trace_set(files: Sequence[Path]) -> TraceSet:
    """Return the traces of NPU 0, 1, ...; equal files are read once."""
    tables: list[TraceTable | None] = [None] * len(files)
    for npus in users_of_contents(dict(enumerate(files))).values():
        table = read_trace(files[npus[0]])
        for npu in npus:
            tables[npu] = table
    return TraceSet.of(tables)


def read_groups_of(name: str) -> FileSections:
    """Return the communicator groups of a file; a name that contains "empty" means that there are none."""
    if NO_GROUPS in name:
        return FileSections({})
    read_groups(name)
    return FileSections({"workload": {"groups": name}})

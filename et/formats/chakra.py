"""Chakra traces: a file, or a folder of `prefix.<npu>.et` files (.et.gz too) with `groups.json` if there are groups."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nadi import inputs
from nadi.et.errors import TraceError, advising
from nadi.et.files import GROUPS_NAME, Groups, files_of_npus, prefix_of, read_groups
from nadi.et.reader import read_trace
from nadi.et.table import LazyTraces, TraceTable, TraceTables, write_table

NAME = "chakra"
TITLE = "Chakra traces, NAME.<npu>.et"
OPTIONS = {"strict": "false drops dependencies on nodes that a trace lacks, and cycles of control dependencies"}

NOT_STRICT_OPTION = f"--from {NAME}:strict=false"


def recognises(path: Path) -> bool:
    """Return whether the path is a Chakra trace, or a folder with some.

    Args:
        path: The path of a file or folder.
    """
    if path.is_dir():
        return any(prefix_of(file) for file in path.iterdir())
    kind = inputs.kind_of(path)
    return kind is not None and kind.key in {"chakra", "gzip:chakra"}


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """Return the traces of files or a folder; a file without a number is NPU 0's.

    Args:
        paths: The files or folders that the user gives.
        options: The values of the format's options by name: only strict.
    """
    files = files_of_npus(paths)
    strict = is_strict(options)

    def read_npu(npu: int) -> TraceTable:
        """Return the trace of NPU `npu`."""
        with advising(NOT_STRICT_OPTION):
            return read_trace(files[npu], strict=strict, keep_others=True)

    return TraceTables(LazyTraces(files.keys(), read_npu), groups_in(paths))


def groups_in(folders: Iterable[Path]) -> Groups:
    """Return the groups in the group files of some folders.

    Args:
        folders: The folders in which files are sought.
    """
    files = [folder / GROUPS_NAME for folder in folders if (folder / GROUPS_NAME).is_file()]
    return {name: members for file in files for name, members in read_groups(file).items()}


def is_strict(options: Mapping[str, str]) -> bool:
    """Return the value of the option strict. Raises TraceError: it is neither true nor false.

    Args:
        options: The values of the format's options by name.
    """
    strict = options.get("strict", "true")
    if strict not in {"true", "false"}:
        raise TraceError(f"strict={strict}: expected true or false")
    return strict == "true"


def names(traces: TraceTables, prefix: str) -> list[str]:
    """Return `prefix.<npu>.et` for each NPU, and the group file.

    Args:
        traces: The traces by NPU, with their groups.
        prefix: The beginning of the files' names.
    """
    return [*(f"{prefix}.{npu}.et" for npu in traces.tables), *([GROUPS_NAME] if traces.groups else [])]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:  # noqa: ARG001 - none
    """Write each trace to the file PREFIX.NPU.et in a folder, and the group file.

    Args:
        traces: The traces by NPU, with their groups.
        folder: The folder of the files.
        prefix: The beginning of the files' names.
        options: The values of options by name: there are no options.
    """
    for npu, table in traces.tables.items():
        write_table(folder / f"{prefix}.{npu}.et", table)
    write_groups(traces, folder)


def write_groups(traces: TraceTables, folder: Path) -> None:
    """Write the group file, if the traces have groups.

    Args:
        traces: The traces by NPU, with their groups.
        folder: The folder of the files.
    """
    if traces.groups:
        groups = {name: list(members) for name, members in traces.groups.items()}
        (folder / GROUPS_NAME).write_text(json.dumps(groups) + "\n", encoding="utf-8")

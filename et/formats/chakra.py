"""Chakra traces: a file, or a folder of `prefix.<npu>.et` files (.et.gz too) with `groups.json` if there are groups."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import inputs
from et.errors import TraceError, advising
from et.groups import read_groups
from et.prefixes import GROUPS_NAME, files_of_npus, prefix_of
from et.reader import read_trace
from et.table import TraceTable
from et.table_writer import write_table
from et.trace_tables import TracesOnDisk, TraceTables

NAME = "chakra"
TITLE = "Chakra traces, NAME.<npu>.et"
OPTIONS = {"strict": "false drops dependencies on nodes that a trace lacks, and cycles of control dependencies"}

NOT_STRICT_OPTION = f"--from {NAME}:strict=false"


def recognises(path: Path) -> bool:
    """Whether it is a Chakra trace, or a folder with some."""
    if path.is_dir():
        return any(prefix_of(file) for file in path.iterdir())
    kind = inputs.kind_of(path)
    return kind is not None and kind.key in {"chakra", "gzip:chakra"}


def read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables:
    """The traces of a folder, or of files; a file without a number is NPU 0's.

    Raises:
        TraceError: a folder without traces or with those of several sets, two files of one NPU, or a wrong file.
    """
    files = files_of_npus(paths)
    reading = functools.partial(_read, strict=is_strict(options))
    beside = [path / GROUPS_NAME for path in paths if (path / GROUPS_NAME).is_file()]
    groups = {name: members for file in beside for name, members in read_groups(file).items()}
    return TraceTables(TracesOnDisk(files, reading), groups)


def _read(path: Path, *, strict: bool) -> TraceTable:
    with advising(NOT_STRICT_OPTION):
        return read_trace(path, strict=strict, keep_others=True)


def is_strict(options: Mapping[str, str]) -> bool:
    """What the option says.

    Raises:
        TraceError: neither true nor false.
    """
    strict = options.get("strict", "true")
    if strict not in {"true", "false"}:
        raise TraceError(f"strict={strict}: expected true or false")
    return strict == "true"


def names(traces: TraceTables, prefix: str) -> list[str]:
    """`prefix.<npu>.et` for each, and the group file."""
    return [*(f"{prefix}.{npu}.et" for npu in traces.tables), *([GROUPS_NAME] if traces.groups else [])]


def write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None:  # noqa: ARG001 - none
    """Write all files.

    Raises:
        TraceError: a trace cannot be read or written.
    """
    for npu, table in traces.tables.items():
        write_table(folder / f"{prefix}.{npu}.et", table)
    if traces.groups:
        said = {name: list(members) for name, members in traces.groups.items()}
        (folder / GROUPS_NAME).write_text(json.dumps(said) + "\n", encoding="utf-8")

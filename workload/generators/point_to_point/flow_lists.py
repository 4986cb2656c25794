"""Lists of flows in files: CSV, `flow.txt` of ns-3 (HPCC), and connection matrices of htsim.

| ending | form |
| --- | --- |
| .csv | a header with src, dst, bytes, and one of start_s, start_ms, start_us, start_ns, start_ps; a flow per line |
| .txt | ns-3: the number of flows; then `SRC DST PRIORITY PORT BYTES SECONDS` per line, or the same without PORT |
| .cm | htsim: `workload.generators.point_to_point.connection_matrix` |

Other columns of CSV mean nothing here, so that a table of flows of an earlier run (`flows.parquet`) may become a list.
The generator of HPCC lets the first flow start at second 2; times of `flow.txt` count from its earliest flow. Its SRC
and DST are numbers of nodes of the topology's file, which numbers GPUs and switches together. As in ns-3, what follows
the flows that its first line counts is not read. Sources:
alibaba-edu/High-Precision-Congestion-Control (scratch/third.cc, ReadFlowInput) and, without PORT, conweave-project.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi.inputs import read_text, refusing
from nadi.inputs.files import unread
from nadi.inputs.limits import LONGEST_PS, MAX_BYTES, MAX_NPUS
from nadi.inputs.units import PS_PER_US, US_PER_S, short
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.point_to_point.connection_matrix import flow_traces, read_connections
from nadi.workload.generators.point_to_point.traces import MAX_MESSAGES, MessageSequence, trace_set
from nadi.workload.trace_sets.trace_set import TraceSet

ENDINGS = (".csv", ".txt", ".cm")
_US = {"start_s": US_PER_S, "start_ms": 1e3, "start_us": 1.0, "start_ns": 1e-3, "start_ps": 1e-6}
"""Microseconds of the unit of each column of starts."""
_LONGEST_US = LONGEST_PS / PS_PER_US
_CSV = f"a header with src, dst, bytes and one of {', '.join(_US)}"
_NS3 = "SRC DST PRIORITY PORT BYTES SECONDS behind a line with the number of flows"


class _Flow(NamedTuple):
    """A flow of a list."""

    src: int  # rank that sends
    dst: int  # rank that receives
    bytes: int  # size in bytes
    start_us: float  # start time in microseconds


def flow_list(path: Path, rank_of: Mapping[int, int] | None = None) -> TraceSet:
    """Return the traces of the ranks of a list of flows. Raises WorkloadError: a line is wrong.

    Args:
        path: The path of a list that ends in .csv, .txt (ns-3) or .cm (htsim).
        rank_of: The rank of each node number that an ns-3 list may name, those of the GPUs in the topology's file; None
            = the numbers are ranks.
    """
    if path.suffix not in ENDINGS:
        raise WorkloadError(f"{path}: found a name that ends otherwise; expected {', '.join(ENDINGS)}")
    if path.suffix == ".cm":
        matrix = read_connections(path)
        if matrix.failures:
            raise WorkloadError(
                f"{matrix.failures[0].place}: found a failure; expected flows, and [[faults]] beside them"
            )
        return flow_traces(matrix, waits_on_host=True).traces
    with refusing(path, _CSV if path.suffix == ".csv" else _NS3, WorkloadError, UnicodeDecodeError, csv.Error):
        lines = read_text(path).splitlines()
        flows = _of_csv(path, lines) if path.suffix == ".csv" else _of_ns3(path, lines, rank_of)
    if not flows:
        raise WorkloadError(f"{path}: found no flow; expected one or more")
    if len(flows) > MAX_MESSAGES:
        raise WorkloadError(f"{path}: found {len(flows):,} flows; expected at most {MAX_MESSAGES:,}")
    # A stable sort: flows of equal starts keep the order of the file, which breaks ties at an NPU
    flows.sort(key=lambda flow: flow.start_us)
    src, dst, size, start_us = (np.array(column) for column in zip(*flows, strict=True))
    npus = int(max(src.max(), dst.max())) + 1
    return trace_set(MessageSequence(npus, src, dst, size, start_us.astype(np.float64), in_turn=False))


def _of_csv(path: Path, lines: Sequence[str]) -> list[_Flow]:
    """Return the flows of the lines of a CSV file."""
    rows = csv.reader(lines)
    header = [name.strip() for name in next(rows, [])]
    starts = [name for name in header if name in _US]
    if not {"src", "dst", "bytes"} <= set(header) or len(starts) != 1:
        raise WorkloadError(f"{path}: line 1: found {short(','.join(header))}; expected {_CSV}")
    places = [header.index(name) for name in ("src", "dst", "bytes", starts[0])]
    found = []
    for row in rows:
        if row:
            words = [row[place] if place < len(row) else "" for place in places]
            found.append(_flow(f"{path}: line {rows.line_num}", words, _US[starts[0]]))
    return found


def warnings(path: Path) -> tuple[str, ...]:
    """Return a sentence about the lines of a list that `flow_list` does not read; no sentence if it reads all.

    Args:
        path: The path of the file.
    """
    if path.suffix == ".txt":
        with suppress(OSError, ValueError):  # changed since it was read
            count, numbered = _numbered(path, read_text(path).splitlines())
            return unread(path, numbered[count:], f"{count:,} flows")
    return ()


def _numbered(path: Path, lines: Sequence[str]) -> tuple[int, list[tuple[int, str]]]:
    """Return the number of flows that the first line of an ns-3 file says, and the other lines that are not empty."""
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    head = numbered[0][1].strip() if numbered else ""
    if not (head.isascii() and head.isdecimal() and len(head) <= len(str(MAX_MESSAGES))):
        raise WorkloadError(f"{path}: line 1: found {short(head)}; expected {_NS3}")
    return int(head), numbered[1:]


def _of_ns3(path: Path, lines: Sequence[str], rank_of: Mapping[int, int] | None) -> list[_Flow]:
    """Return the flows of the lines of an ns-3 file, whose earliest one starts at 0; rank_of: see `flow_list`."""
    found = []
    count, numbered = _numbered(path, lines)
    for number, line in numbered[:count]:
        place, words = f"{path}: line {number}", line.split()
        if len(words) not in {5, 6}:
            raise WorkloadError(f"{place}: found {len(words)} words; expected {_NS3}")
        # With PORT or without it, bytes and seconds are the last two words
        flow = _flow(place, [*words[:2], *words[-2:]], _US["start_s"])
        if rank_of is not None:
            other = next((end for end in (flow.src, flow.dst) if end not in rank_of), None)
            if other is not None:
                raise WorkloadError(
                    f"{place}: found node {other}, a switch or none; expected the number of a GPU in the topology"
                )
            flow = flow._replace(src=rank_of[flow.src], dst=rank_of[flow.dst])
        found.append(flow)
    if len(found) < count:
        raise WorkloadError(f"{path}: found {len(found)} flows; expected {count}, as its first line says")
    first_us = min((flow.start_us for flow in found), default=0.0)
    return [flow._replace(start_us=flow.start_us - first_us) for flow in found]


def _flow(place: str, words: Iterable[str], unit_us: float) -> _Flow:
    """Return the flow of four words: sender, receiver, bytes and start."""
    src, dst, size, start = (word.strip() for word in words)
    sender, receiver = (_whole(place, "an NPU", word, MAX_NPUS - 1) for word in (src, dst))
    size_bytes = _whole(place, "bytes", size, MAX_BYTES)
    try:
        start_us = float(start) * unit_us
    except ValueError:
        start_us = math.nan
    if not 0 <= start_us <= _LONGEST_US:
        raise WorkloadError(f"{place}: found {short(start)} as the start; expected a time from 0 to 11 days")
    if sender == receiver or not size_bytes:
        raise WorkloadError(f"{place}: found {size_bytes} bytes from {src} to {dst}; expected 1 or more to another NPU")
    return _Flow(sender, receiver, size_bytes, start_us)


def _whole(place: str, what: str, word: str, maximum: int) -> int:
    """Return the whole number of a word."""
    if not (word.isascii() and word.isdecimal() and len(word) < 20 and int(word) <= maximum):
        raise WorkloadError(f"{place}: found {short(word)} as {what}; expected a whole number up to {maximum}")
    return int(word)

"""The messages of a critical path, read from flows.parquet block by block to bound memory."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.insight.runs import Run
from nadi.simulation.schemas import FLOWS

Int64 = NDArray[np.int64]
Rows = dict[str, Int64]  # columns of flows.parquet; ideal_ps is -1 where it is not known

MAX_FLOWS = 4096  # number of messages of a collective that are examined
_COLUMNS = ("src", "dst", "group", "seq", "control", "bytes", "start_ps", "finish_ps", "ideal_ps")
_SEQ_BITS = 32  # bits of a collective's place in a key of group and place


class MessagesOfPath:
    """Messages of given collectives, and messages that traces send between given pairs of NPUs."""

    def __init__(self, run: Run, collectives: Iterable[tuple[int, int]], pairs: Iterable[tuple[int, int]]) -> None:
        """Read the messages.

        Raises:
            ConfigError: flows.parquet cannot be read.
        """
        self._npus = int(run.summary.get("npus", 0))
        wanted = np.array([group << _SEQ_BITS | seq for group, seq in set(collectives)], np.int64)
        between = np.array([src * self._npus + dst for src, dst in set(pairs) if src >= 0], np.int64)
        rows = list(_chosen(run, wanted, between, self._npus)) if len(wanted) or len(between) else []
        empty = np.zeros(0, np.int64)
        self._rows = {name: np.concatenate([empty, *(block[name] for block in rows)]) for name in _COLUMNS}
        self._key = self._rows["group"] << _SEQ_BITS | self._rows["seq"]

    def of_collective(self, group: int, seq: int) -> Rows:
        """Return the messages of a collective sorted by receiver; a sample of MAX_FLOWS if there are more."""
        here = np.flatnonzero(self._key == (group << _SEQ_BITS | seq))
        here = here[np.argsort(self._rows["dst"][here], kind="stable")]
        if len(here) > MAX_FLOWS:
            here = here[np.linspace(0, len(here) - 1, MAX_FLOWS).astype(np.int64)]
        return self._at(here)

    def between(self, src: int, dst: int, end_ps: float) -> Rows:
        """Return the trace's message from src to dst whose end is nearest to end_ps; no rows without such a message."""
        own = np.flatnonzero((self._rows["src"] == src) & (self._rows["dst"] == dst) & (self._rows["group"] < 0))
        if len(own):
            own = own[[int(np.argmin(np.abs(self._rows["finish_ps"][own] - end_ps)))]]
        return self._at(own)

    def _at(self, rows: Int64) -> Rows:
        return {name: column[rows] for name, column in self._rows.items()}


def _chosen(run: Run, wanted: Int64, between: Int64, npus: int) -> Iterator[Rows]:
    """Yield the wanted rows of each block of the file."""
    for block in run.blocks(FLOWS, _COLUMNS):
        group, seq, src, dst = (_numbers(block, name) for name in ("group", "seq", "src", "dst"))
        of_collectives = np.isin(group << _SEQ_BITS | seq, wanted)
        of_traces = (group < 0) & (_numbers(block, "control") == 0)
        of_traces[of_traces] = np.isin(src[of_traces] * npus + dst[of_traces], between)
        here = pa.array(np.flatnonzero(of_collectives | of_traces))
        if len(here):
            found = block.take(here)
            yield {name: _numbers(found, name) for name in _COLUMNS}


def _numbers(block: pa.RecordBatch, name: str) -> Int64:
    column = block.column(name)
    return np.asarray(column.fill_null(-1) if column.null_count else column, np.int64)

"""Traces of a program as arrays, with the states of their rows, jobs and slow-downs; rows that are likely reused."""

from nadi.pdes.construction.domains import replayable_rows
from nadi.pdes.construction.layout import offsets
from nadi.pdes.construction.schedule import slow_changes
from nadi.pdes.construction.tables import (
    begin_traces,
    digests,
    job_tables,
    padded,
    row_states,
    slow_1000ths,
    trace_tables,
)
from nadi.pdes.core.state import RowStates, Trace
from nadi.pdes.reuse.forecast import counted_rows

"""Merging of traces that differ only in the numbers of schedules with equal contents.

Algorithms that depend on a group's position get one schedule per shape, although members on the first GPUs of their
hosts do the same as members on the second GPUs. Without the merge, NPUs with such schedules would not fold.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from workload import Program
from workload.collectives.schedules.packed import Schedules

Int64 = NDArray[np.int64]

_OF_SCHEDULE = ("members", "chunks", "relative", "launch_ps", "regions", "aggregators", "uneven")
_OF_TRACE = (
    *("kind", "lane", "duration_ps", "bytes", "peer", "tag", "seq"),
    *("group", "schedule", "collective", "uneven", "channel", "priority", "deps"),
)


def with_shared_traces(program: Program) -> Program:
    """Return an equivalent program without duplicate schedules and traces."""
    number = _numbers([_contents(program.schedules, index) for index in range(len(program.schedules.members))])
    if len(np.unique(number)) == len(number):
        return program
    schedule = np.where(program.node_schedule >= 0, np.append(number, -1)[program.node_schedule], -1)
    shared = program._replace(node_schedule=schedule.astype(np.int32))
    trace = _numbers([_rows(shared, index) for index in range(len(program.trace_ptr) - 1)])
    return shared._replace(trace_of_npu=trace[program.trace_of_npu].astype(np.int32))


def _numbers(digests: list[bytes]) -> Int64:
    """Return int64[n], the index of the first occurrence of each digest."""
    first: dict[bytes, int] = {}
    return np.array([first.setdefault(digest, at) for at, digest in enumerate(digests)], np.int64)


def _contents(s: Schedules, index: int) -> bytes:
    """Return a digest of the contents of a schedule."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _OF_SCHEDULE:
        digest.update(getattr(s, name)[index].tobytes())
    plans = s.plan_of[s.plan_of_ptr[index] : s.plan_of_ptr[index + 1]]
    unlike, which = np.unique(plans, return_inverse=True)
    _add(digest, which)
    lane_columns = [getattr(s, name) for name in s._fields if name.startswith("lane_") and name != "lane_ptr"]
    for plan in unlike.tolist():
        lanes = slice(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1]))
        steps = slice(int(s.lane_ptr[lanes.start]), int(s.lane_ptr[lanes.stop]))
        _add(digest, np.diff(s.lane_ptr[lanes.start : lanes.stop + 1]))
        for column in lane_columns:
            _add(digest, column[lanes])
        _add(digest, s.steps[steps])
    _add_views(digest, s, index)
    return digest.digest()


def _add_views(digest: hashlib.blake2b, s: Schedules, index: int) -> None:
    """Add the views (lines of members) and the arrangements of pieces of a schedule to its digest."""
    views = slice(int(s.view_base[index]), int(np.append(s.view_base, len(s.view_size))[index + 1]))
    entries = slice(int(s.view_ptr[views.start]), int(s.view_ptr[views.stop]))
    for column in (s.view_size[views], s.view_parts[views]):
        _add(digest, column)
    for column in (s.view_member[entries], s.view_at[entries], s.view_part[entries]):
        _add(digest, column)
    arrangements = slice(
        int(s.arrangement_base[index]), int(np.append(s.arrangement_base, len(s.arrangement_ptr) - 1)[index + 1])
    )
    _add(digest, np.diff(s.arrangement_ptr[arrangements.start : arrangements.stop + 1]))
    _add(
        digest,
        s.arrangement_piece[int(s.arrangement_ptr[arrangements.start]) : int(s.arrangement_ptr[arrangements.stop])],
    )


def _rows(program: Program, index: int) -> bytes:
    """Return a digest of the contents of a trace."""
    digest = hashlib.blake2b(digest_size=16)
    rows = slice(int(program.trace_ptr[index]), int(program.trace_ptr[index + 1]))
    for name in _OF_TRACE:
        _add(digest, getattr(program, f"node_{name}")[rows])
    children = program.child_ptr[rows.start : rows.stop + 1]
    _add(digest, np.diff(children))
    _add(digest, program.child[int(children[0]) : int(children[-1])])
    return digest.digest()


def _add(digest: hashlib.blake2b, column: NDArray[np.generic]) -> None:
    digest.update(len(column).to_bytes(8, "little"))
    digest.update(np.ascontiguousarray(column).data)

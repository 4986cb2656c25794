"""Sends over several NICs: a message between two NPUs as several, which take turns on the sender's links.

A communication library sends a message over all NICs of a GPU (NCCL: each channel of a peer uses the next NIC,
`ncclTopoGetLocalNet` in src/graph/topo.cc). A Program has one row for such a send and one for its receive, both with
the number of their parts (`node_parts`). The engine runs the program of `divided`, where each part is a message of its
own, on a connection of its own; parts have consecutive connections, which take turns on the NICs by their rates.
"""

import numpy as np

from nadi.inputs.arrays import Int64, pointers, spans
from nadi.workload.node_kinds import SEND
from nadi.workload.program.assembling import collective_lists, receive_lists
from nadi.workload.program.program import Program

_LISTED = ("kind", "peer", "tag", "seq", "group")  # columns that lists of collectives and receives are made from


def divided(program: Program) -> Program:
    """Return the program whose sends and receives of several parts are as many rows; itself if there are none.

    Part p of k is the stripe of the message's bytes from p / k on, and message number seq x k + p of its peer and tag.
    The parts follow each other in the place of their row; they have its parents and its children.
    """
    if not program.has_divided_sends:
        return program
    parts = program.node_parts.astype(np.int64)
    first = pointers(parts)  # of each row, the first of its parts
    row = np.repeat(np.arange(len(parts)), parts)
    part, of = np.arange(len(row)) - first[row], parts[row]
    columns = {name: getattr(program, name)[row] for name in program._fields if name.startswith("node_")}
    size_bytes, channel = columns["node_bytes"], columns["node_channel"]
    # 10 bytes in 3 parts are 3, 3 and 4: no byte is lost or sent twice
    columns["node_bytes"] = (part + 1) * size_bytes // of - part * size_bytes // of
    # Message 2 of its tag, in 3 parts, becomes 6, 7 and 8. Send and receive have equal parts, and so match again.
    columns["node_seq"] = (columns["node_seq"] * of + part).astype(np.int32)
    columns["node_channel"] = np.where((of > 1) & (columns["node_kind"] == SEND), channel + part, channel)
    columns["node_channel"] = columns["node_channel"].astype(np.int32)
    columns["node_parts"] = np.ones_like(columns["node_parts"])
    trace_begin = np.repeat(program.trace_ptr[:-1], np.diff(program.trace_ptr))  # of each row
    whole_row = (np.arange(len(parts)) - trace_begin)[row].astype(np.int32)
    trace_ptr = first[program.trace_ptr]
    # children of each row, each with all of its parts, and then of each part of the row
    parent, edge = spans(program.child_ptr[:-1], np.diff(program.child_ptr))
    child = trace_begin[parent] + program.child[edge]
    edge, at = spans(first[child], parts[child])
    child_ptr = pointers(np.bincount(parent[edge], minlength=len(parts)))
    child = at - first[trace_begin[parent[edge]]]
    counts = np.diff(child_ptr)[row]
    columns["node_deps"] = _parents(child + first[trace_begin[parent[edge]]], parts[parent[edge]], len(row))
    names = {name: columns[f"node_{name}"] for name in _LISTED}
    slots_of_trace = np.diff(program.trace_slot_ptr)
    trace_slot_ptr, coll_ptr, coll_node = collective_lists(names, trace_ptr, slots_of_trace)
    recv_ptr, recv_key, recv_node = receive_lists(names, trace_ptr)
    return program._replace(
        **columns,
        trace_ptr=trace_ptr,
        child_ptr=pointers(counts),
        child=child[spans(child_ptr[row], counts)[1]].astype(np.int32),
        trace_slot_ptr=trace_slot_ptr,
        coll_ptr=coll_ptr,
        coll_node=coll_node,
        recv_ptr=recv_ptr,
        recv_key=recv_key,
        recv_node=recv_node,
        whole_row=whole_row,
    )


def _parents(child: Int64, parts_of_parent: Int64, num_rows: int) -> Int64:
    """Return int32[num_rows], the number of parents of each row.

    Args:
        child: int64[e], the row at the end of each edge, counted over all traces.
        parts_of_parent: int64[e], the number of parts of the row at its begin, each of which is a parent.
        num_rows: The number of rows of all traces.
    """
    return np.bincount(child, parts_of_parent, num_rows).astype(np.int32)


def further_rows(program: Program) -> int:
    """Return the number of rows that the NPUs of a rank have in the divided program beyond those in the program."""
    if not program.has_divided_sends:
        return 0
    further = pointers(program.node_parts.astype(np.int64) - 1)[program.trace_ptr]
    return int(np.diff(further)[program.trace_of_npu[program.trace_of_npu >= 0]].sum())


def joined(program: Program, npu_node_ptr: Int64, start_ps: Int64, finish_ps: Int64) -> tuple[Int64, Int64, Int64]:
    """Return pointers, begins and ends of the rows of a program from those of its divided one.

    A row begins with the first of its parts and ends with the last; it is not over (-1) before all of them are.

    Args:
        program: The program before it was divided.
        npu_node_ptr: int64[npus + 1], the rows of each NPU in the results of a run; none of NPUs that are not here.
        start_ps: int64[rows], the begin of each row of the divided program in picoseconds, -1 = it has not begun.
        finish_ps: int64[rows], the end of each row of the divided program in picoseconds, -1 = it is not over.
    """
    trace = program.trace_of_npu[: len(npu_node_ptr) - 1]
    is_here = np.diff(npu_node_ptr) > 0
    rows = np.where(is_here, np.diff(program.trace_ptr)[trace], 0)
    parts = program.node_parts[spans(program.trace_ptr[trace], rows)[1]].astype(np.int64)
    first = pointers(parts)[:-1]
    if not len(first):
        return npu_node_ptr, start_ps, finish_ps
    # Every row has at least one part, so that reduceat meets no empty range
    is_over = np.minimum.reduceat(finish_ps, first) >= 0
    ends_ps = np.where(is_over, np.maximum.reduceat(finish_ps, first), -1)
    return pointers(rows), np.minimum.reduceat(start_ps, first), ends_ps

"""Traces of an NPU's messages, made column by column: lists of a million flows take seconds.

Each row is a copy of one of three: a receive, a wait on the host, and a send, with some columns filled in later.
"""

import dataclasses
from typing import Any

import numpy as np

from nadi.et import Block, TraceColumns, TraceTable
from nadi.et.arrays import Int64, Mask, pointers
from nadi.et.names import NameTable

NODE_BYTES = 300  # memory in bytes per node while traces are made: twice what 3 million nodes take
_RECEIVE, _WAIT, _SEND = range(3)


def message_trace(
    npu: int,
    receives: tuple[Int64, Int64, Int64],
    sends: tuple[Int64, Int64, Int64, Int64],
    *,
    in_turn: bool,
    exact: bool,
) -> TraceTable:
    """Return the trace of an NPU: its receives, then its waits and sends.

    receives: number, sender and bytes of each message; sends: number, receiver, bytes and time of each, by time.
    in_turn: a send follows the end of the one before; exact: times are numbers of operations instead of microseconds.
    """
    number, _, _, at = sends
    gaps = np.diff(at, prepend=0)
    waits = gaps > 0
    place = len(receives[0]) + np.arange(len(at)) + np.cumsum(waits)  # rows of sends; a wait is in the row before
    rows = len(receives[0]) + len(at) + int(waits.sum())
    kind = np.full(rows, _WAIT)
    kind[: len(receives[0])], kind[place] = _RECEIVE, _SEND
    columns = _copies(npu, kind)
    for other_end, (_, peer, size), own in (("comm_src", receives, _RECEIVE), ("comm_dst", sends[:3], _SEND)):
        columns[other_end][kind == own] = peer
        columns["comm_size"][kind == own] = size
    columns["num_ops" if exact else "duration_micros"][place[waits] - 1] = gaps[waits]
    dep_ptr, dep = _parents(rows, place, waits, in_turn=in_turn)
    names = [f"message{i}/from{peer}" for i, peer in zip(receives[0].tolist(), receives[1].tolist(), strict=True)]
    for i, peer, is_late in zip(number.tolist(), sends[1].tolist(), waits.tolist(), strict=True):
        names += [f"message{i}/wait", f"message{i}/to{peer}"] if is_late else [f"message{i}/to{peer}"]
    table = NameTable.of(name.encode() for name in names)
    return dataclasses.replace(_template(npu), **columns, names=table, dep_ptr=dep_ptr, dep=dep)


def _template(npu: int) -> TraceTable:
    """Return a trace with a row of each kind, in the order of _RECEIVE, _WAIT and _SEND."""
    block = Block()
    block.recv("", 1, peer=npu)
    block.comp("", is_cpu_op=True)
    block.send("", 1, peer=npu)
    columns = TraceColumns(npu)
    columns.stamp(block)
    return columns.table()


def _copies(npu: int, kind: Int64) -> dict[str, Any]:
    """Return the columns of rows of these kinds, without those of parents and names."""
    template = _template(npu)
    columns = {
        field.name: getattr(template, field.name)[kind]
        for field in dataclasses.fields(template)
        if isinstance(getattr(template, field.name), np.ndarray) and field.name not in {"dep_ptr", "dep", "node_id"}
    }
    return columns | {"node_id": np.arange(len(kind), dtype=np.uint64)}


def _parents(rows: int, sends: Int64, waits: Mask, *, in_turn: bool) -> tuple[Int64, Any]:
    """Return dep_ptr and dep: a wait follows the wait before, a send the latest wait (in_turn: and the send before)."""
    own_waits = sends[waits] - 1
    latest = np.cumsum(waits) - 1  # of the waits before each send, -1 = none
    children, parents = [own_waits[1:]], [own_waits[:-1]]
    waited = latest >= 0
    children.append(sends[waited])
    parents.append(own_waits[latest[waited]])
    if in_turn:
        children.append(sends[1:])
        parents.append(sends[:-1])
    child, parent = np.concatenate(children), np.concatenate(parents)
    order = np.lexsort((parent, child))
    return pointers(np.bincount(child, minlength=rows)), parent[order].astype(np.int32)

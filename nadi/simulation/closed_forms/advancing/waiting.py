"""Message for a run at closed forms that cannot finish: the rows that wait, and for what."""

import numpy as np

from nadi.simulation.closed_forms.advancing import state as s
from nadi.simulation.closed_forms.advancing.folded_program import FoldedProgram
from pdes import MAX_LINES
from pdes.traces import KIND_COLLECTIVE, KIND_RECV, ROW_DONE, ROW_READY, ROW_STARTED


def deadlock_message(folded: FoldedProgram, work: s.AdvanceState) -> str:
    """Return a message with one line per unfinished row of the first NPU of each class, and what it waits for."""
    flag = work.rows.flag[: folded.row_ptr[-1]]
    begun = np.flatnonzero(((flag & (ROW_STARTED | ROW_READY)) != 0) & ((flag & ROW_DONE) == 0))
    which = np.searchsorted(folded.row_ptr, begun, side="right") - 1
    rows = begun - folded.row_ptr[which]
    shown = zip(which[:MAX_LINES].tolist(), rows[:MAX_LINES].tolist(), strict=True)
    lines = [_waits(folded, work, c, row) for c, row in shown]
    done = np.add.reduceat(np.append((flag & ROW_DONE) != 0, False).astype(np.int64), folded.row_ptr[:-1])
    of_class = np.diff(folded.row_ptr)
    left = int(((of_class - np.where(of_class > 0, done, 0)) * folded.classes.size).sum())
    more = f"\n  and {len(begun) - MAX_LINES} more" if len(begun) > MAX_LINES else ""
    head = f"nothing is left to happen at {int(work.ctl.now_ps)} ps, but {left} trace nodes are not done:"
    return head + "".join(f"\n  {line}" for line in lines) + more


def _waits(folded: FoldedProgram, work: s.AdvanceState, c: int, row: int) -> str:
    program, classes = folded.program, folded.classes
    npu = int(classes.example[c])
    at = int(program.trace_ptr[program.trace_of_npu[npu]]) + row
    kind, seq = int(program.node_kind[at]), int(program.node_seq[at])
    if kind == KIND_RECV:
        peer = npu + int(program.node_peer[at])
        return f"npu {npu} row {row}: receive {seq} of tag {program.node_tag[at]} waits for npu {peer}"
    if kind != KIND_COLLECTIVE:
        return f"npu {npu} row {row} is under way (engine defect)"
    slot = int(program.node_group[at])
    group = int(program.slot_group[program.slot_ptr[npu] + slot])
    name = f"npu {npu} row {row}: collective {seq} of group {group}"
    turn = int(work.rows.slot_next[folded.slot_ptr[c] + slot])
    if work.ctl.serial == 1 and turn != seq:
        return f"{name} waits for its turn: collective {turn} of the group is not done"
    members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]].tolist()
    absent = next((m for m in members if not _has_come(folded, work, m, group, seq)), None)
    return f"{name} waits for npu {absent}" if absent is not None else f"{name} waits for nothing (engine defect)"


def _has_come(folded: FoldedProgram, work: s.AdvanceState, npu: int, group: int, seq: int) -> bool:
    """Return whether a member is ready for a collective of its group."""
    program, c = folded.program, int(folded.classes.class_of_npu[npu])
    slots = np.flatnonzero(program.slot_group[program.slot_ptr[npu] : program.slot_ptr[npu + 1]] == group)
    if not len(slots):
        return False
    entry = program.trace_slot_ptr[program.trace_of_npu[npu]] + slots[0]
    row = int(program.coll_node[program.coll_ptr[entry] + seq])
    return bool(work.rows.flag[folded.row_ptr[c] + row] & ROW_STARTED)

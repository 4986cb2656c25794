"""Checks of restored state: what kernels take as numbers of rows, links, nodes and packets lies in their tables.

A file of a checkpoint with a valid checksum may still hold what no run has written. Kernels check no index, so that
such a number would make them read and write other memory.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from nadi.pdes.checkpoint import SavedState, flat
from nadi.pdes.construction.layout import LogicalProcess
from nadi.pdes.core import Int64, Rows, RunError, packet, state as s
from nadi.pdes.core.algorithms import FREE
from nadi.pdes.core.declared import POOLS, saved_arrays
from nadi.pdes.core.rows import ALONE, WordKind
from nadi.pdes.core.rows.messages import FIRST_EVENT
from nadi.pdes.core.rows.network import Port
from nadi.pdes.core.rows.npu import Npu
from nadi.pdes.messages.events import ARRIVE, FINISH, KIND_SHIFT, LAUNCH, LEFT, OWN, SOLVE, STEP, TAKE
from nadi.pdes.npu.trace import KIND_SEND

_ROWS_OF = {pool.table: pool.rows for pool in POOLS.values()}  # array with the rows of a table that grows
MARKS = 4  # negative numbers that stand for no index; below them, lists mark their ends by number


class DamagedStateError(RunError):
    """A checkpoint holds what no run has written."""

    exit_code = 2


@contextmanager
def readable(part: str) -> Iterator[None]:
    """Raise DamagedStateError with the name of a part where the block meets values that no run has written."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        AssertionError,
        StopIteration,
    ) as error:
        if hasattr(error, "exit_code"):
            raise
        raise DamagedStateError(
            f"--resume: {part} of the checkpoint does not fit the run ({type(error).__name__}: {error}); expected the "
            "files that the run has written"
        ) from error


def _refuse(name: str, found: Any, expected: str) -> None:
    raise DamagedStateError(f"--resume: found {found} in {name} of the checkpoint; expected {expected}")


def check_owner(run: SavedState, nodes: int) -> Int64:
    """Return the LP of each node in a checkpoint, int64[nodes], from its part about the whole run, and check that."""
    owner, values = run.arrays.get("owner"), run.values
    if owner is None or owner.dtype != np.int64 or len(owner) != nodes:
        _refuse("owner", "no LP of each node", f"those of {nodes} nodes")
    for name, largest in (("begin_ps", s.LONGEST_RUN_PS), ("lps", nodes), ("reuse", 1)):
        if not isinstance(values.get(name), int) or not 0 <= values[name] <= largest:
            _refuse(name, repr(values.get(name)), f"0 to {largest}")
    _check("owner", owner, values["lps"] - 1, smallest=0)
    return np.asarray(owner)


def check_shapes(world: s.World, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that saved arrays have the types of the LP's, and their lengths, or longer ones where pools grow.

    Args:
        world: State of the LP, which was just built (`World`).
        arrays: Saved arrays of the LP by name.
    """
    own = {each.name: flat(each.of(world)) for each in saved_arrays()}
    for each in saved_arrays():
        name, array, saved = each.name, own[each.name], arrays.get(each.name)
        if saved is None or saved.dtype != array.dtype:
            _refuse(name, "nothing" if saved is None else f"numbers of type {saved.dtype}", f"type {array.dtype}")
            continue
        pool = _ROWS_OF.get(each.table) if each.table else None
        rows = len(own[pool]) if pool else 1
        grown = len(arrays[pool]) if pool else 1
        # arrays of models with one LP grow by themselves
        if ALONE in each.marks and pool is None:
            fits = len(saved) >= len(array)
        else:
            fits = grown >= rows and (len(saved) == len(array) or len(saved) * rows == len(array) * grown)
        if not fits:
            _refuse(name, f"{len(saved)} numbers", f"{len(array) * grown // rows}")


def check_built(world: s.World, arrays: Mapping[str, np.ndarray]) -> None:
    """Check the words of saved arrays that follow from fabric and program alone; the LP was just built.

    Args:
        world: State of the LP, which was just built (`World`).
        arrays: Saved arrays of the LP by name.
    """
    npu = _rows(arrays, "npus.npu", world.npus.npu)
    for word, declared in Npu.declared.items():
        if declared.is_built and (npu[word] != world.npus.npu[word]).any():
            _refuse(f"npus.npu.{word}", "another value", "that of the fabric and the traces")
    # the class of a link is left out, which faults change
    meta, own = _rows(arrays, "net.tx", world.net.tx).meta, world.net.tx.meta
    if (packet.end_of(meta) != packet.end_of(own)).any() or (packet.number_of(meta) != packet.number_of(own)).any():
        _refuse("net.tx.meta", "another fabric", "that of the run")


def _rows(arrays: Mapping[str, np.ndarray], name: str, like: Rows) -> Rows:
    return arrays[name].view(like.dtype).view(np.recarray)


def check_world(lp: LogicalProcess) -> None:
    """Check what kernels take as an index in the restored state of an LP.

    Args:
        lp: The logical process.
    """
    world = lp.world
    net, qps, insts, npus = world.net, world.qps, world.insts, world.npus
    limits = {
        WordKind.LINK: len(net.tx),
        WordKind.NODE: len(net.inbox) // (2 * s.SIDES) + int(net.const.lists),
        WordKind.LIST: int(net.const.lists),
        WordKind.QUEUE_PAIR: len(qps.qp),
        WordKind.RECEIVER: len(qps.rxqp),
        WordKind.RECORD: len(net.record),
        WordKind.MESSAGE: len(qps.msg),
        WordKind.INSTANCE: len(insts.inst),
        WordKind.LANE: len(insts.lane) - 1,
        WordKind.PHASE: len(insts.phase),
        WordKind.ROW: int(np.diff(lp.row_ptr).max(initial=0)),
    }
    by_message = net.hooks.act != 0
    for each in saved_arrays():
        if each.name in {"qps.msg", "messages.event"} or (by_message and each.name.startswith("flows.")):
            continue
        for word, declared in getattr(each.kind, "declared", {}).items():
            if declared.kind in limits and each.kind is not Port:
                _check(f"{each.name}.{word}", each.of(world)[word], limits[declared.kind])
    _check_plain(world)
    for name, keys in {"qps.qp_key": qps.qp_key, "qps.rxqp": qps.rxqp.key, "insts.inst_key": insts.inst_key}.items():
        if len(keys) > 1 and (keys != FREE).all():
            _refuse(name, "no free place", "one, where searches end")
    if not by_message:
        # all kinds of its rows have the next of a list in this word (pdes.core.rows.network)
        _check("qps.msg.next_message", qps.msg.next_message, len(qps.msg))
    _check_ports(npus.port, limits)
    _check_rows(lp)
    _check_message_events(world, lp.part.npus)
    _check_events(lp)
    _check_packets(lp)


def _check_plain(world: s.World) -> None:
    """Check the arrays and counters of an LP that hold numbers of rows without a declared kind."""
    net, qps, insts = world.net, world.qps, world.insts
    blocks = len(net.block_free)
    changes = len(world.schedule.change)
    plain = {
        "net.inbox": (net.inbox, len(net.record)),
        "net.wait_head": (net.wait_head, len(net.record)),
        "net.wait_tail": (net.wait_tail, len(net.record)),
        "net.block_next": (net.block_next, blocks - 1),
        "net.block_free": (net.block_free, blocks - 1),
        "net.backlog": (net.backlog, len(net.tx) - 1),
        "net.tx.meta": (packet.class_of(net.tx.meta), len(net.link_class) - 1),
        "qps.msg_free": (qps.msg_free, len(qps.msg) - 1),
        "qps.qp_val": (qps.qp_val, len(qps.qp) - 1),
        "insts.inst_free": (insts.inst_free, len(insts.inst) - 1),
        "insts.inst_val": (insts.inst_val, len(insts.inst) - 1),
        "insts.inst.key": (packet.instance_node(insts.inst.key), max(int(net.const.npus) - 1, 0)),
        "rows.slot_next": (world.rows.slot_next, len(world.trace.coll_node)),
        "net.ctl.free_blocks": (net.ctl.free_blocks, blocks),
        "net.ctl.free_messages": (net.ctl.free_messages, len(qps.msg_free)),
        "net.ctl.free_instances": (net.ctl.free_instances, len(insts.inst_free)),
        "net.ctl.free_samples": (net.ctl.free_samples, len(net.sample_log)),
        "net.ctl.queue_pairs": (net.ctl.queue_pairs, len(qps.qp)),
        "net.ctl.receivers": (net.ctl.receivers, len(qps.rxqp)),
        "net.ctl.flows_out": (net.ctl.flows_out, len(qps.flow_out)),
        "net.ctl.flows_in": (net.ctl.flows_in, len(qps.flow_in)),
        "net.ctl.side": (net.ctl.side, s.SIDES - 1),
        "net.ctl.parity": (net.ctl.parity, 1),
        "net.ctl.fault_at": (net.ctl.fault_at, s.INF if net.const.first_repeated < changes else changes),
    }
    for name, (values, largest) in plain.items():
        _check(name, values, largest)


def _check_ports(port: Rows, limits: Mapping[WordKind, int]) -> None:
    """Check the ports of NPUs; the ends of an empty queue are old numbers."""
    for word, declared in Port.declared.items():
        if declared.kind in limits:
            queue = word.split("_")[0]
            used = port[f"{queue}_packets"] > 0 if declared.kind is WordKind.RECORD else np.ones(len(port), bool)
            _check(f"npus.port.{word}", port[word][used], limits[declared.kind])


def _check(name: str, values: Any, largest: int, smallest: int | None = None) -> None:
    """Check numbers that kernels take as an index; negative ones are marks, down to -2 less the largest."""
    values = np.asarray(values)
    smallest = -largest - MARKS if smallest is None else smallest
    wrong = values[(values < smallest) | (values > largest)]
    if wrong.size:
        _refuse(name, wrong.reshape(-1)[0], f"{smallest} to {largest}")


def _check_rows(lp: LogicalProcess) -> None:
    """Check the states of trace rows: rows of lists and numbers of parents, or the message of a send that waits."""
    world, rows = lp.world, np.diff(lp.row_ptr)
    first = np.repeat(world.npus.npu.trace_base[: len(rows)] - lp.row_ptr[:-1], rows)
    kind = world.trace.kind[first + np.arange(len(first))]
    state, most = world.rows.state[: len(first)], int(rows.max(initial=0)) + MARKS
    _check("rows.state", state[kind != KIND_SEND], most)
    _check("rows.state", state[kind == KIND_SEND], max(most, len(world.qps.msg)))


def _check_message_events(world: s.World, npus: int) -> None:
    """Check the subjects of the events of messages by their kinds (pdes/messages/events.py); npus: NPUs of the LP."""
    event: Rows = world.messages.event[FIRST_EVENT:]
    kind, which = event.order >> KIND_SHIFT, event.which
    messages, instances, pairs = len(world.qps.msg), len(world.insts.inst), 2 * len(world.qps.qp)
    bounds = {  # smallest and largest subject
        FINISH: (0, 0),
        OWN: (0, npus - 1),
        LEFT: (-instances, messages - 1),
        LAUNCH: (0, instances - 1),
        TAKE: (0, messages - 1),
        ARRIVE: (0, messages - 1),
        STEP: (-pairs, messages - 1),  # of packets beside flows: -1 - (queue pair << 1 | what)
        SOLVE: (0, 0),
    }
    for number, (smallest, largest) in bounds.items():
        _check("messages.event.which", which[kind == number], largest, smallest)


def _check_events(lp: LogicalProcess) -> None:
    """Check the numbers of NPUs' own events, and the ports, lanes and timers to which they belong."""
    npus = lp.world.npus
    npu: Rows = npus.npu[: lp.part.npus]
    ends = np.append(npu.heap[1:], len(npus.heap) // 2)
    if ((npu.heap_size < 0) | (npu.heap_size > ends - npu.heap)).any():
        _refuse("npus.npu.heap_size", "more events", "as many as there is room for")
    events = np.asarray(npu.heap_size)
    first = np.cumsum(events) - events  # events before those of each NPU
    place = np.arange(int(events.sum())) + np.repeat(npu.heap - first, events)
    slots = npus.heap[2 * place + 1]
    if ((slots < 0) | (slots > np.repeat(2 * npu.ports + s.LANES + 4, events))).any():
        _refuse("npus.heap", "an event of no port, lane or timer", "one of those of its NPU")


def _check_packets(lp: LogicalProcess) -> None:
    """Check the destinations of packets, and the queue pairs that acknowledgements name."""
    npus, record = len(lp.world.net.jobs.who), lp.world.net.record
    goes_to = packet.destination(record.w1)
    is_unknown = (goes_to < 0) | ((goes_to >= npus) & (goes_to != packet.PAUSE_FRAME))
    if (is_unknown | (packet.source(record.w1) >= npus)).any():
        _refuse("net.record.w1", "an unknown NPU", f"numbers below {npus}")
    local = lp.part.local[np.minimum(goes_to, npus - 1)]
    # only acknowledgements name a queue pair of this LP
    is_own = (packet.flags(record.w1) & packet.FLAG_ACK != 0) & (goes_to < npus) & (local >= 0)
    _check("net.record.w2", packet.sender_pair(record.w2[is_own]), len(lp.world.qps.qp) - 1)

"""Scenarios of the fabric: messages as arrays, runs with their checks, and what fair shares are."""

from typing import NamedTuple

import numpy as np

from nadi import pdes
from nadi.pdes.network import balancing
from nadi.pdes.nic import congestion
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.program.program import TraceRows, assemble, empty_rows
from nadi.workload.trace_sets.groups import resolve
from nadi.workload.trace_sets.trace_set import IDLE, own_traces
from tests.fabric.cases import largest_headrooms
from tests.nonempty import nonempty
from tests.scenarios.running import check

MTU, HEADER, ACK = 4096, 82, 86
US = 10**6
MS = 10**9
COMPUTE, SEND, RECV = 1, 3, 4
COMPUTE_LANE = 1


class Messages(NamedTuple):
    """Messages as columns of equal length: src, dst, bytes, and when they are posted (ps)."""

    src: np.ndarray
    dst: np.ndarray
    size_bytes: np.ndarray
    start_ps: np.ndarray


def messages(src, dst, size_bytes, start_ps=0):
    columns = [np.asarray(x, np.int64).reshape(-1) for x in np.broadcast_arrays(src, dst, size_bytes, start_ps)]
    order = np.argsort(columns[3], kind="stable")
    return Messages(*(column[order] for column in columns))


def streams(src, dst, size_bytes, count, start_ps=0):
    """For each pair `count` messages, all posted at its start: they follow one another without a gap."""
    each = messages(src, dst, size_bytes, start_ps)
    counts = np.broadcast_to(count, len(each.src))
    return messages(*(np.repeat(column, counts) for column in each))


def incast(senders, size_bytes, *, to=None):
    """NPUs 0 to senders - 1 send to the one after them at once."""
    return messages(np.arange(senders), senders if to is None else to, size_bytes)


def program(npus, sent):
    """The program that sends them.

    A sender's compute lane works through the gaps between its messages one after the other, so each is posted at its
    time to the picosecond.
    """
    ordinal = _ordinals(sent.src * npus + sent.dst)
    rows = [_rows(npu, sent, ordinal) for npu in range(npus)]
    groups = resolve(own_traces([], np.full(npus, IDLE, np.int32)), npus, {})
    return assemble(np.arange(npus, dtype=np.int32), rows, groups, ScheduleSet().pack())


def _ordinals(key):
    """How many of the same key come before each."""
    order = np.argsort(key, kind="stable")
    new = np.diff(key[order], prepend=-1) != 0
    first = np.maximum.accumulate(np.where(new, np.arange(len(key)), 0))
    ordinal = np.empty(len(key), np.int64)
    ordinal[order] = np.arange(len(key)) - first
    return ordinal


def _rows(npu, sent, ordinal) -> TraceRows:
    """Gaps, sends, receives."""
    out, into = np.flatnonzero(sent.src == npu), np.flatnonzero(sent.dst == npu)
    gap = np.diff(sent.start_ps[out], prepend=0)
    gaps, n = np.flatnonzero(gap), len(out)
    total = len(gaps) + n + len(into)
    rows = empty_rows(total)
    waits, sends, receives = np.split(np.arange(total), [len(gaps), len(gaps) + n])
    rows.kind[waits], rows.lane[waits], rows.duration_ps[waits] = COMPUTE, COMPUTE_LANE, gap[gaps]
    for at, which, kind, peer in ((sends, out, SEND, sent.dst), (receives, into, RECV, sent.src)):
        rows.kind[at], rows.bytes[at] = kind, sent.size_bytes[which]
        rows.peer[at], rows.seq[at] = peer[which] - npu, ordinal[which]
    last_gap = np.cumsum(gap > 0) - 1  # of each message, -1 none
    has_gap = np.zeros(total, np.int64)
    has_gap[sends] = last_gap >= 0
    dep_ptr = np.concatenate([[0], np.cumsum(has_gap)])
    return rows._replace(dep_ptr=dep_ptr, dep=last_gap[last_gap >= 0].astype(np.int32))


def simulate(graph, sent, *, control="none", values=None, balance="ecmp", **chosen):
    """Run the messages (or a Program); every run is checked. Returns Results and Simulation."""
    what = program(graph.npus, sent) if isinstance(sent, Messages) else sent
    settings = pdes.Settings(
        congestion_control=congestion.control(control, values), load_balancing=balancing.balancing(balance), **chosen
    )
    sim = pdes.build_world(graph, what, settings)
    results = pdes.run(sim)
    check_all_arrived(results, what, settings)
    return results, sim


def check_all_arrived(results, what, settings):
    """As in tests/scenarios, and no pause is left in force."""
    count = results.counters
    beside = ("congestion_notifications", "trimmed_packets", "retransmitted_packets", "dropped_packets")
    if settings.record_nodes and not any(count[name] for name in beside):
        check(results, what, settings)
    assert count["bytes_sent"] == count["bytes_received"] + count["bytes_dropped"]
    npus_of_row = np.repeat(np.bincount(what.trace_of_npu, minlength=len(what.trace_ptr) - 1), np.diff(what.trace_ptr))
    received = what.node_bytes * (what.node_kind == RECV) * npus_of_row
    assert count["payload_bytes"] == results.flows["bytes"].sum() == received.sum()
    assert count["flows"] == npus_of_row[what.node_kind == SEND].sum()
    packets = np.maximum(1, -(-results.flows["bytes"] // settings.mtu_bytes)).sum()
    assert count["data_packets"] - count["retransmitted_packets"] == packets


def check_lossless(results, sim):
    """Nothing was lost or sent again, buffers are empty, and every pause has been taken back."""
    count, gate = results.counters, sim.lps[0].world.net.gate
    assert count["dropped_packets"] == count["retransmitted_packets"] == count["timeouts"] == 0
    assert results.links["dropped_packets"].sum() == 0
    for word in ("paused", "asked", "mask", "in_bytes", "held_bytes"):
        assert not gate[word].any(), word
    pool = sim.lps[0].world.net.pool
    for word in ("used_bytes", "ports", "asked"):
        assert not pool[word].any(), word
    assert count["pause_frames"] == gate.pause_frames.sum() == results.links["pause_frames"].sum()
    # who was asked to pause has paused, over the same cable
    asked, paused = (np.flatnonzero(results.links[name]) for name in ("pause_frames", "paused_ps"))
    assert sorted(asked ^ 1) == paused.tolist()


def frames_and_notifications(results, hops_of_flow):
    """Packets that crossed links, less data and acknowledgements; hops_of_flow: links of each flow's way."""
    data = np.maximum(1, -(-results.flows["bytes"] // MTU)) * hops_of_flow
    return results.counters["packet_hops"] - 2 * int(data.sum())


def jain(shares):
    shares = np.asarray(shares, float)
    return shares.sum() ** 2 / (len(shares) * (shares**2).sum())


def shares(flows, begin_ps, end_ps, keys=None):
    """Bytes of each sender that came between two times.

    Messages of a sender follow one another, so the bytes come evenly from one finish to the next; `keys` are the
    senders, by default all.
    """
    keys = np.unique(flows["src"]) if keys is None else keys
    out = []
    for key in nonempty(keys):
        of = flows["src"] == key
        finish = np.concatenate([[flows["start_ps"][of].min()], np.sort(flows["finish_ps"][of])])
        assert finish[-1] >= end_ps, f"NPU {key} is done at {finish[-1]}"
        done = np.concatenate([[0], np.cumsum(flows["bytes"][of])])
        out.append(np.diff(np.interp([begin_ps, end_ps], finish, done))[0])
    return np.array(out)


def water_fill(weight, capacity, crosses=None, step=0.0):
    """Max-min fair rates.

    Args:
        weight: float[links, flows], what a unit of a flow takes of a link.
        capacity: float[links].
        crosses: bool[links, flows], whether the flow is held back by the link (its acknowledgements take of links that
            do not hold it back); by default where weight is above zero. Weights there are 1.
        step: a link that holds flows back at rate x is filled to 1 / (1 - step / x) of its capacity, as HPCC does.

    All rates grow alike until a link is full; the flows that it holds back stand still, the others go on. What flows
    take of links that do not hold them back is found by iteration.
    """
    weight, capacity = np.asarray(weight, float), np.asarray(capacity, float)
    crosses = weight > 0 if crosses is None else np.asarray(crosses, bool)
    rate = np.zeros(weight.shape[1])
    for _ in range(200):
        beside = np.where(crosses, 0, weight) @ rate
        before, rate = rate, _fill(crosses, capacity, beside, step)
        if np.allclose(before, rate, rtol=1e-12, atol=0):
            return rate
    raise AssertionError("no fixed point")


def _fill(crosses, capacity, beside, step):
    """Where (taken + n x) (x - step) = capacity x."""
    rate = np.zeros(crosses.shape[1])
    free = crosses.any(axis=0)
    while free.any():
        taken = beside + crosses @ np.where(free, 0, rate)
        grows = crosses[:, free].sum(axis=1)
        room, n = capacity + grows * step - taken, np.maximum(grows, 1)
        level = (room + np.sqrt(room**2 + 4 * n * taken * step)) / (2 * n)
        full = int(np.argmin(np.where(grows > 0, level, np.inf)))
        rate[free] = level[full]
        free &= ~crosses[full]
    return rate


def probes(src, dst, begin_ps, end_ps, every_ps):
    """Packets of a byte that meet the queues on their way."""
    return messages(src, dst, 1, np.arange(begin_ps, end_ps, every_ps))


def waits(flows, src):
    """When the packets of a prober came, and how long each waited (ps)."""
    of = flows["src"] == src
    took = flows["finish_ps"][of] - flows["start_ps"][of]
    return flows["finish_ps"][of], took - took.min()


def together(*sent):
    return messages(*(np.concatenate(columns) for columns in zip(*sent, strict=True)))


def buffer_of(graph, shared_bytes, mtu_bytes=MTU, **chosen):
    """Switches that have at least so many bytes to share above the headrooms of their ports."""
    rooms = largest_headrooms(graph, mtu_bytes + HEADER)
    return pdes.SharedBuffer(buffer_bytes=rooms + shared_bytes, **chosen)

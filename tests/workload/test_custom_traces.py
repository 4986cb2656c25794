"""Collectives as Chakra traces: what can be known of them is checked, and their messages have the bytes they say."""

import pytest

from nadi import et
from nadi.et import comp_node, recv_node, send_node
from nadi.workload import WorkloadError
from nadi.workload.collectives.custom import read_custom
from nadi.workload.collectives.schedules.packed import pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from tests.nonempty import nonempty

PART = 1000


def write(folder, members):
    for member, nodes in enumerate(members):
        et.write_trace(folder / f"c.{member}.et", et.metadata(), nodes)
    return folder / "c"


def ring(n, part=PART, micros=0):
    """An all-reduce's messages; in the first half something is computed before what came is sent on."""
    members = []
    for me in range(n):
        nodes, last = [], []
        for k in range(2 * (n - 1)):
            after, before = (me + 1) % n, (me - 1) % n
            nodes.append(send_node(3 * k, "s", me, after, part, deps=last))
            nodes.append(recv_node(3 * k + 1, "r", before, me, part, deps=[3 * k]))
            last = [3 * k + 1]
            if micros and k < n - 1:
                nodes.append(comp_node(3 * k + 2, "c", duration_micros=micros, deps=last))
                last = [3 * k + 2]
        members.append(nodes)
    return members


def all_pairs(n, part=PART):
    """Everybody sends to everybody: all-to-all or all-gather."""
    members = []
    for me in range(n):
        others = [p for p in range(n) if p != me]
        sends = [send_node(p, "s", me, p, part) for p in others]
        members.append([*sends, *(recv_node(n + p, "r", p, me, part) for p in others)])
    return members


def sends_of(plans, size):
    """Bytes of each send, by member."""
    packed = pack([plans])
    return [
        [
            buffer.wire_bytes(step.send_chunk, 1, size)
            for lane, buffer in zip(own, of_own, strict=True)
            for step in lane
            if step.send_peer >= 0
        ]
        for own, of_own in zip(unpack(packed, 0), buffers(packed, 0), strict=True)
    ]


def test_messages_have_the_bytes_of_the_trace_whatever_the_size(tmp_path):
    prefix = write(tmp_path, ring(4))
    for size in (4000, 3999, 7, 1):
        assert sends_of(read_custom(prefix, "all-reduce", size), size) == [[PART] * 6] * 4


def test_made_for_a_size_they_grow_with_the_buffer(tmp_path):
    plans = read_custom(write(tmp_path, ring(4)), "all-reduce", 4000)
    assert sends_of(plans, 8000) == [[2 * PART] * 6] * 4
    assert sends_of(plans, 4002) == [[1001] * 6] * 4  # 1000.5 B


def test_computation_is_the_latency_of_the_sends_that_wait_for_it(tmp_path):
    plans = read_custom(write(tmp_path, ring(4, micros=7)), "all-reduce", 4000)
    lanes = zip(plans.plans[0], plans.attributes_of(0), strict=True)
    sends = [(sum(step.send_peer >= 0 for step in lane), lane_of.latency_ps) for lane, lane_of in lanes]
    assert sorted(sends) == [(0, 0), (3, 0), (3, 7_000_000)]


def test_a_send_waits_for_all_that_it_depends_on(tmp_path):
    members = [
        [recv_node(0, "r", 1, 0, 5), recv_node(1, "r", 2, 0, 5), send_node(2, "s", 0, 1, 5, deps=[0, 1]),
         send_node(3, "s", 0, 2, 5, deps=[0, 1])],
        [send_node(0, "s", 1, 0, 5), recv_node(1, "r", 0, 1, 5)],
        [send_node(0, "s", 2, 0, 5), recv_node(1, "r", 0, 2, 5)],
    ]  # fmt: skip
    plans = read_custom(write(tmp_path, members), "all-reduce", 5)
    lanes = plans.plans[0]
    for lane in nonempty(lanes):
        if any(step.send_peer >= 0 for step in lane):
            assert {lanes[step.dep_lane][step.dep_step].recv_peer for step in lane} == {1, 2}


@pytest.mark.parametrize("kind", ["all-to-all", "all-gather", "reduce-scatter"])
def test_all_pairs_is_enough_for_parts(kind, tmp_path):
    assert read_custom(write(tmp_path, all_pairs(4)), kind, 4 * PART).members == 4


def without(members, member, *numbers):
    members[member] = [node for i, node in enumerate(members[member]) if i not in numbers]
    return members


def late(members):
    """Member 0 sends only after it has received all."""
    sends, receives = members[0][:3], members[0][3:]
    for node in sends:
        node.data_deps.extend(r.id for r in receives)
    return members


def everyone_late(n):
    members = all_pairs(n)
    for own in members:
        for node in own[: n - 1]:
            node.data_deps.extend(r.id for r in own[n - 1 :])
    return members


BROKEN = {
    "no receive": (without(ring(3), 0, 7), r"c\.2\.et: node 9: sends to 0, which does not receive it; expected a rec"),
    "no send": (
        [[send_node(0, "s", 0, 1, 9)], [recv_node(0, "r", 0, 1, 9), recv_node(1, "r", 0, 1, 9)]],
        r"c\.1\.et: node 1: receives from 0, which does not send it; expected a send$",
    ),
    "another tag": (
        [[send_node(0, "s", 0, 1, 9, 4)], [recv_node(0, "r", 0, 1, 9, 3)]],
        r"c\.0\.et: node 0: sends to 1 with tag 4, which receives none; expected a receive$",
    ),
    "a peer beyond": ([[send_node(7, "s", 0, 2, 9)], []], r"c\.0\.et: node 7: comm_dst 2, expected another member"),
    "other bytes": (
        [[send_node(0, "s", 0, 1, 4000), recv_node(1, "r", 1, 0, 4000)],
         [send_node(0, "s", 1, 0, 4000), recv_node(1, "r", 0, 1, 4001)]],
        r"c\.1\.et: node 1: 4001 B, expected 4000 B as .*c\.0\.et: node 0$",
    ),
    "a circle": (
        everyone_late(3),
        r"c\.0\.et: node \d: waits for itself \(node \d after .*c\.\d\.et: .*\), expected no cycle$",
    ),
    "too few bytes": (
        ring(4, PART // 2), r"c\.0\.et: sends 3000 B, expected at least 4000 B for all-reduce of 4000 B$"
    ),
    "nothing comes": (
        [[send_node(0, "s", 0, 1, 9000), recv_node(1, "r", 1, 0, 9000)],
         [send_node(0, "s", 1, 0, 9000), recv_node(1, "r", 0, 1, 9000)],
         [send_node(0, "s", 2, 3, 9000), recv_node(1, "r", 3, 2, 9000)],
         [send_node(0, "s", 3, 2, 9000), recv_node(1, "r", 2, 3, 9000)]],
        r"c\.0\.et: no message brings what member 2 had; expected one for all-reduce$",
    ),
    "a collective in it": (
        [[et.coll_node(0, "x", et.CollectiveCommType.ALL_REDUCE, 9)], []],
        r"c\.0\.et: node 0: COMM_COLL_NODE, expected COMM_SEND_NODE, COMM_RECV_NODE or COMP_NODE in a collective$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_refused(name, tmp_path):
    members, reason = BROKEN[name]
    with pytest.raises(WorkloadError, match=reason) as error:
        read_custom(write(tmp_path, members), "all-reduce", 4000)
    assert "\n" not in str(error.value)


def test_one_late_member_is_well(tmp_path):
    assert read_custom(write(tmp_path, late(all_pairs(4))), "all-to-all", 4 * PART).members == 4


def test_a_member_without_a_trace(tmp_path):
    prefix = write(tmp_path, ring(4))
    (tmp_path / "c.2.et").unlink()
    with pytest.raises(WorkloadError, match=r"/c: no c\.2\.et, expected traces 0 \.\. 3$"):
        read_custom(prefix, "all-reduce", 4000)
    with pytest.raises(WorkloadError, match=r"/c: no c\.2\.et, expected"):
        read_custom(prefix, "barrier", 4000)

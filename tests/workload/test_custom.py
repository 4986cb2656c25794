"""Collectives that users bring: MSCCL's XML and Chakra traces, and what of them is refused."""

import re

import pytest

from nadi import et
from nadi.workload import CollectiveSettings, WorkloadError, algorithms_of, collectives, default_algorithm
from nadi.workload.collectives.custom import read_custom, to_msccl
from nadi.workload.collectives.schedules.oracle import check
from nadi.workload.collectives.schedules.packed import ScheduleSet, pack
from nadi.workload.collectives.schedules.sends import buffers, unpack
from tests.nonempty import nonempty
from tests.workload import msccl_files
from tests.workload.alpha_beta import Network

GOOD = {
    "ring": ("all-reduce", msccl_files.ring(4)),
    "fused ring": ("all-reduce", msccl_files.fused_ring(5)),
    "all pairs": ("all-reduce", msccl_files.all_pairs(4)),
    "hierarchical": ("all-gather", msccl_files.hierarchical_all_gather()),
    "hierarchical in place": ("all-gather", msccl_files.hierarchical_all_gather(inplace=1)),
    "sum chain": ("reduce", msccl_files.sum_chain(4)),
    "exchange": ("all-to-all", msccl_files.exchange_of_two(inplace=0)),
    "exchange in place": ("all-to-all", msccl_files.exchange_of_two(inplace=1)),
    "reduce-scatter": ("reduce-scatter", msccl_files.reduce_scatter_of_two(inplace=0)),
    "reduce-scatter in place": ("reduce-scatter", msccl_files.reduce_scatter_of_two(inplace=1)),
}


def written(folder, text):
    path = folder / "a.xml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", GOOD)
def test_does_what_the_kind_promises_in_any_order(name, tmp_path):
    kind, text = GOOD[name]
    schedules = pack([read_custom(written(tmp_path, text), kind)])
    for seed in range(10):
        check(kind, schedules, 0, seed)


def test_a_message_is_as_many_chunks_as_the_step_says(tmp_path):
    plans = read_custom(written(tmp_path, msccl_files.sum_chain(3)), "reduce")
    sends = [[step for step in plan[0] if step.send_peer >= 0] for plan in plans.plans]
    assert plans.chunks == 2
    assert [[(s.send_peer, s.send_count) for s in own] for own in sends] == [[], [(0, 2)], [(1, 2)]]


def test_what_is_added_and_sent_on_is_not_kept(tmp_path):
    plans = read_custom(written(tmp_path, msccl_files.sum_chain(3)), "reduce")
    assert all(step.recv_chunk >= plans.chunks for step in nonempty(plans.plans[1][0]) if step.recv_chunk >= 0)


@pytest.mark.parametrize(("proto", "wire"), [("Simple", (1, 1)), ("LL", (2, 1)), ("LL128", (16, 15))])
def test_the_protocol_adds_its_flags(proto, wire, tmp_path):
    plans = read_custom(written(tmp_path, msccl_files.ring(3, proto)), "all-reduce")
    assert {lane.wire for i in range(3) for lane in plans.attributes_of(i)} == {wire}


RING, PAIRS, GATHER = msccl_files.ring(4), msccl_files.all_pairs(3), msccl_files.hierarchical_all_gather()
FIRST = 'type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1"'
BASES = {"ring": ("all-reduce", RING), "pairs": ("all-reduce", PAIRS), "gather": ("all-gather", GATHER)}
SAME_TIME = ": may be at the same chunk at the same time as gpu 0 tb"
CIRCLE = ": gpu 0 tb 0 step 0: waits for itself"


def edited(base, old, new, reason):
    """Kind and text of a good file with one edit, and why it is refused."""
    kind, text = BASES[base]
    assert old in text
    return kind, text.replace(old, new, 1), reason


ADDERS = [[(-1, 1, 0, ["rrc i0"]), (-1, 2, 0, ["rrc i0"])], *[[(0, -1, 0, ["s i0"])] for _ in range(2)]]
BOTH_WAIT = [[(1, 1, 0, ["rrc i0", "s i0"])], [(0, 0, 0, ["rrc i0", "s i0"])]]
TWO_BLOCKS = [[(1, 1, 0, ["s i0"]), (1, -1, 0, ["s i0"])], [(0, 0, 0, ["s i0", "rrc i0"])]]
FEWER = msccl_files.sum_chain(2).replace('type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="2"', FIRST)
NOP = 'type="nop" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="1" depid="1"'
TO, DEPS = 'send="1" recv="3"', 'depid="2" deps="3"'
FREE = 'srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1"'
GETS = '<step s="1" type="r" srcbuf="o" srcoff="2"'
BROKEN = {
    "wrong chunk sent": edited(
        "ring", FIRST, FIRST.replace('srcoff="0"', 'srcoff="2"'), r": no all-reduce: member \d ch"
    ),
    "no dependency": edited(
        "pairs", DEPS, 'depid="-1" deps="-1"', f": gpu 0 tb 2 step 2{SAME_TIME} 0 step 2, and .*; e"
    ),
    "two that add": ("reduce", msccl_files.algo("reduce", 1, ADDERS), f": gpu 0 tb 1 step 0{SAME_TIME} 0 step 0, and"),
    "no nop": edited("pairs", NOP, 'type="nop" depid="-1"', f": gpu 0 tb 2 step 3{SAME_TIME} 1 step 1, and"),
    "cycle": edited("pairs", FREE, f'srcoff="1" {DEPS}', rf"{CIRCLE} \(gpu 0 tb 0 step 0 after gpu 0 tb 2 .*\), exp"),
    "deadlock of messages": (
        "all-reduce",
        msccl_files.algo("allreduce", 1, BOTH_WAIT),
        f"{CIRCLE} .gpu 0 tb 0 step 0 after gpu 1 tb 0 step 1 after gpu 1 tb 0 step 0 aft",
    ),
    "no receiver": edited(
        "ring", TO, 'send="2" recv="3"', ": gpu 0 tb 0: sends to 2 on chan 0, where no tb has recv 0;"
    ),
    "another channel": edited(
        "ring", f'{TO} chan="0"', f'{TO} chan="1"', ": gpu 0 tb 0: sends to 1 on chan 1, where no tb "
    ),
    "peer beyond the GPUs": edited(
        "ring", TO, 'send="4" recv="3"', ": gpu 0 tb 0: send 4, expected another GPU from 0 t"
    ),
    "a send too many": edited(
        "gather", GETS, GETS.replace('"r"', '"nop"'), ": gpu 2 tb 0 step 0: sends to 0, which does not "
    ),
    "other counts": (
        "reduce",
        FEWER,
        ": gpu 0 tb 0 step 0: receives 2 chunks, expected 1 that gpu 1 tb 0 step 0 sends$",
    ),
    "chunk beyond the buffer": edited(
        "gather",
        'type="s" srcbuf="i" srcoff="0"',
        'type="s" srcbuf="i" srcoff="1"',
        ": chunks 1 .. 1 of i, expected 0 .. 0$",
    ),
    "two blocks of a connection": (
        "all-reduce",
        msccl_files.algo("allreduce", 1, TWO_BLOCKS),
        ": gpu 0 tb 0: send 1 on chan 0 as another tb, expected one of them$",
    ),
    "a step that is not there": edited(
        "pairs", DEPS, 'depid="2" deps="9"', ": gpu 0 tb 0 step 2: depends on tb 2 step 9, e"
    ),
    "another kind": ("all-gather", RING, ": coll 'allreduce', expected 'allgather'$"),
    "a kind that MSCCL lacks": ("barrier", RING, ": coll 'allreduce', expected none for barrier$"),
    "a GPU missing": edited("ring", '<gpu id="3"', '<gpu id="5"', r": gpus \[0, 1, 2, 5\], expected each"),
    "a type": edited("ring", 'type="rrc"', 'type="put"', "gpu 0 tb 0 step 1: type 'put', expected one"),
    "a protocol": ("all-reduce", msccl_files.ring(3, "LL64"), ": proto 'LL64', expected one of Simple, LL, LL128$"),
    "parts": edited("gather", 'loop="4"', 'loop="6"', "loop 6, expected a multiple of 4 GPUs for all-g"),
    "no number": edited("ring", 'cnt="1"', 'cnt="one"', "step 0: cnt 'one', expected a whole number"),
    "no XML": ("all-reduce", RING[:-9], ": no XML: "),
    "another element": edited("ring", "<gpu", "<net/><gpu", ": <net>, expected <gpu>$"),
    "another element of a block": edited("ring", "<step", "<loop/><step", ": gpu 0 tb 0: <loop>, expected <step>$"),
    "another XML": ("all-reduce", "<plan/>", ": <plan>, expected <algo>$"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_refused(name, tmp_path):
    kind, text, reason = BROKEN[name]
    path = written(tmp_path, text)
    with pytest.raises(WorkloadError, match=reason) as error:
        read_custom(path, kind)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["all pairs", "hierarchical"])
def test_no_dependency_can_be_left_out(name, tmp_path):
    kind, text = GOOD[name]
    deps = [match.span() for match in re.finditer(r'depid="\d+" deps="\d+"', text)]
    assert len(deps) in {4 * 3 * 2, 4}
    for begin, end in deps:
        path = written(tmp_path, f'{text[:begin]}depid="-1" deps="-1"{text[end:]}')
        with pytest.raises(WorkloadError, match="may be at the same chunk at the same time"):
            read_custom(path, kind)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(WorkloadError, match=r"a\.xml: No such file or directory, expected an algorithm of MSCCL$"):
        read_custom(tmp_path / "a.xml", "all-reduce")
    with pytest.raises(
        WorkloadError, match=r"/b: no such file and no b\.0\.et, expected MSCCL's XML or Chakra traces$"
    ):
        read_custom(tmp_path / "b", "all-reduce")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("all-reduce", "ring"),
        ("all-reduce", "direct"),
        ("all-gather", "ring"),
        ("reduce-scatter", "direct"),
        ("all-to-all", "direct"),
        ("broadcast", "ring"),
        ("reduce", "direct"),
    ],
)
def test_own_algorithms_go_there_and_back(kind, name, tmp_path):
    own = collectives.plan(kind, name, 4)
    back = read_custom(written(tmp_path, to_msccl(own, kind, name)), kind)
    times = [Network(pack([plans]), 0, 1 << 20, 1000.0, 20.0).finish_time() for plans in (own, back)]
    assert times[0] == times[1]


def test_what_msccl_cannot_say_is_not_written():
    with pytest.raises(WorkloadError, match=r"^MSCCL's XML of barrier: expected one of allreduce|all-reduce"):
        to_msccl(collectives.plan("barrier", "dissemination", 4), "barrier", "x")
    late = collectives.plan("all-reduce", "ring", 4)._replace(launch_ps=5)
    with pytest.raises(WorkloadError, match="lanes of parts, other chunks or latencies, expected plain ones"):
        to_msccl(late, "all-reduce", "x")


def test_it_has_no_formula(tmp_path):
    file = written(tmp_path, GOOD["ring"][1])
    with pytest.raises(
        WorkloadError, match=r"^algorithm 'custom:file=.*' for all-reduce: it has no closed form, expected"
    ):
        collectives.closed_form("all-reduce", f"custom:file={file}", 4, 120, 700.0, 1e12)


def test_it_must_be_asked_for_by_name():
    assert all("custom" not in algorithms_of(kind) for kind in ("all-reduce", "all-to-all", "gather"))
    assert default_algorithm("all-to-all") == "direct"
    with pytest.raises(
        WorkloadError,
        match=r"^algorithm 'custom' for barrier: expected one of dissemination, in-network, recursive-doubling$",
    ):
        CollectiveSettings({"barrier": "custom:file=x"})


def test_a_changed_file_is_read_again(tmp_path):
    path = written(tmp_path, msccl_files.ring(3))
    assert read_custom(path, "all-reduce").members == 3
    assert read_custom(path, "all-reduce") is read_custom(path, "all-reduce")
    written(tmp_path, msccl_files.ring(4))
    assert read_custom(path, "all-reduce").members == 4


def test_the_schedule_set_wants_the_right_number_of_members(tmp_path, shape_of_npus):
    spec = f"custom:file={written(tmp_path, msccl_files.ring(4))}"
    schedules = ScheduleSet()
    sizes = (1 << 20, 1 << 24)
    assert [schedules.add("all-reduce", spec, 4, shape_of_npus(4), size) for size in sizes] == [0, 0]
    with pytest.raises(WorkloadError, match=r"a\.xml: 4 members, expected 8 as the group of this all-reduce$"):
        schedules.add("all-reduce", spec, 8, shape_of_npus(8), 1 << 20)
    with pytest.raises(WorkloadError, match=r"^algorithm 'custom': no file, expected custom:file=PATH$"):
        schedules.add("all-reduce", "custom", 4, shape_of_npus(4), 1 << 20)


@pytest.fixture
def shape_of_npus():
    from nadi import topologies
    from nadi.workload.shape import shape_of

    return lambda npus: shape_of(topologies.build(f"switch:npus={npus}"), range(npus))


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
            nodes.append(et.send_node(3 * k, "s", me, after, part, deps=last))
            nodes.append(et.recv_node(3 * k + 1, "r", before, me, part, deps=[3 * k]))
            last = [3 * k + 1]
            if micros and k < n - 1:
                nodes.append(et.comp_node(3 * k + 2, "c", duration_micros=micros, deps=last))
                last = [3 * k + 2]
        members.append(nodes)
    return members


def all_pairs(n, part=PART):
    """Everybody sends to everybody: all-to-all or all-gather."""
    members = []
    for me in range(n):
        others = [p for p in range(n) if p != me]
        sends = [et.send_node(p, "s", me, p, part) for p in others]
        members.append([*sends, *(et.recv_node(n + p, "r", p, me, part) for p in others)])
    return members


def sends_of(plans, size):
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
        [et.recv_node(0, "r", 1, 0, 5), et.recv_node(1, "r", 2, 0, 5), et.send_node(2, "s", 0, 1, 5, deps=[0, 1]),
         et.send_node(3, "s", 0, 2, 5, deps=[0, 1])],
        [et.send_node(0, "s", 1, 0, 5), et.recv_node(1, "r", 0, 1, 5)],
        [et.send_node(0, "s", 2, 0, 5), et.recv_node(1, "r", 0, 2, 5)],
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


BROKEN_TRACES = {
    "no receive": (without(ring(3), 0, 7), r"c\.2\.et: node 9: sends to 0, which does not receive it; expected a rec"),
    "no send": (
        [[et.send_node(0, "s", 0, 1, 9)], [et.recv_node(0, "r", 0, 1, 9), et.recv_node(1, "r", 0, 1, 9)]],
        r"c\.1\.et: node 1: receives from 0, which does not send it; expected a send$",
    ),
    "another tag": (
        [[et.send_node(0, "s", 0, 1, 9, 4)], [et.recv_node(0, "r", 0, 1, 9, 3)]],
        r"c\.0\.et: node 0: sends to 1 with tag 4, which receives none; expected a receive$",
    ),
    "a peer beyond": ([[et.send_node(7, "s", 0, 2, 9)], []], r"c\.0\.et: node 7: comm_dst 2, expected another member"),
    "other bytes": (
        [[et.send_node(0, "s", 0, 1, 4000), et.recv_node(1, "r", 1, 0, 4000)],
         [et.send_node(0, "s", 1, 0, 4000), et.recv_node(1, "r", 0, 1, 4001)]],
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
        [[et.send_node(0, "s", 0, 1, 9000), et.recv_node(1, "r", 1, 0, 9000)],
         [et.send_node(0, "s", 1, 0, 9000), et.recv_node(1, "r", 0, 1, 9000)],
         [et.send_node(0, "s", 2, 3, 9000), et.recv_node(1, "r", 3, 2, 9000)],
         [et.send_node(0, "s", 3, 2, 9000), et.recv_node(1, "r", 2, 3, 9000)]],
        r"c\.0\.et: no message brings what member 2 had; expected one for all-reduce$",
    ),
    "a collective in it": (
        [[et.coll_node(0, "x", et.CollectiveCommType.ALL_REDUCE, 9)], []],
        r"c\.0\.et: node 0: COMM_COLL_NODE, expected COMM_SEND_NODE, COMM_RECV_NODE or COMP_NODE in a collective$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_TRACES)
def test_traces_that_are_wrong_are_refused(name, tmp_path):
    members, reason = BROKEN_TRACES[name]
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

"""Where a step's time went, beside a model that asks at each moment what an NPU waits for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi.et import CollectiveCommType, coll_node, comp_node, metadata, recv_node, send_node, table_of
from nadi.insight.step_times import names_an_axis, step_times
from nadi.simulation.schemas import COMMUNICATION_AXES, STEP_CATEGORIES
from nadi.workload import build_program
from nadi.workload.generators.training.pipeline import schedule_of
from tests.budgets import bounded
from tests.scenarios.running import simulate

SPEC = "fully-connected:npus={},rate=100Gbps,delay=1us"
ALL_REDUCE = CollectiveCommType.ALL_REDUCE
US = 10**6
NPUS = 3


class Steps:
    """Traces that grow: nodes of all NPUs in an order in which they can run."""

    def __init__(self, npus):
        self.nodes = [[] for _ in range(npus)]
        self.messages = 0

    def add(self, npu, make, *arguments, **more):
        self.nodes[npu].append(make(len(self.nodes[npu]), *arguments, **more))
        return len(self.nodes[npu]) - 1

    def message(self, src, dst, size, name, deps_src=(), deps_dst=()):
        self.messages += 1
        self.add(src, send_node, name, src, dst, size, self.messages, deps=deps_src)
        return self.add(dst, recv_node, name, src, dst, size, self.messages, deps=deps_dst)

    def run(self, **settings):
        traces = [table_of(metadata(), nodes, f"t.{npu}.et") for npu, nodes in enumerate(self.nodes)]
        own = np.arange(len(traces), dtype=np.int32)
        program = build_program(traces, own, len(traces))
        results = simulate(SPEC.format(len(traces)), program, **settings)
        return step_times(program, traces, own, results), results, traces


@st.composite
def steps(draw):
    made = Steps(NPUS)
    for _ in range(draw(st.integers(3, 14))):

        def deps(npu):
            known = range(len(made.nodes[npu]))
            return draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []

        axis, npu = draw(st.sampled_from([*COMMUNICATION_AXES, "other"])), draw(st.integers(0, NPUS - 1))
        what = draw(st.sampled_from(["compute", "compute", "host", "message", "all"]))
        if what in ("compute", "host"):
            length = draw(st.integers(0, 9))
            made.add(npu, comp_node, "c", duration_micros=length, is_cpu_op=what == "host", deps=deps(npu))
        elif what == "message":
            other = (npu + draw(st.integers(1, NPUS - 1))) % NPUS
            made.message(npu, other, draw(st.integers(1, 50_000)), f"a/{axis}:x", deps(npu), deps(other))
        else:
            for each in range(NPUS):
                made.add(each, coll_node, f"step0/{axis}:all-reduce", ALL_REDUCE, 3000, deps=deps(each))
    made.add(0, comp_node, "tp", duration_micros=1)
    made.message(0, 1, 1, "pp:last")
    return made


ACROSS = ("pp", "embedding", "world")


def naive(made, start, finish, met, end):
    """Of all NPUs: moment by moment, then the waits for members of collectives, in the order in which they end.

    Args:
        made: The traces.
        start, finish: Of each NPU, when its nodes ran.
        met: Of each NPU and node, (when the other ends had begun, the last of them, when they met before), or None.
        end: Of the run.
    """
    spans = [spans_of(nodes, *times, end) for nodes, *times in zip(made.nodes, start, finish, met, strict=True)]
    waits = [
        (until, npu, begin, at)
        for npu, own in enumerate(spans)
        for at, (begin, until, what) in enumerate(own)
        if what[1:]
    ]
    for until, npu, begin, at in sorted(waits):
        axis, last, before = spans[npu][at][2]
        before = min(before, begin)
        late, early = spent(spans[last], before, until), spent(spans[npu], before, begin)
        more = {name: max(0, late[name] - early[name]) for name in STEP_CATEGORIES}
        more[axis] += more.pop("compute") + more.pop("idle")
        whole = sum(more.values())
        shares = {name: int(part * ((until - begin) / whole)) for name, part in more.items()} if whole else {}
        shares[axis] = shares.get(axis, 0) + until - begin - sum(shares.values())
        spans[npu][at] = begin, until, shares
    totals = [spent(own, 0, end) for own in spans]
    return [[round(total[name]) for name in STEP_CATEGORIES] for total in totals]


def spent(spans, begin, until):
    """How long on what between two moments; a wait that is not divided yet counts to its axis."""
    found = dict.fromkeys(STEP_CATEGORIES, 0)
    for first, last, what in spans:
        length = min(last, until) - max(first, begin)
        if length <= 0:
            continue
        parts = what if isinstance(what, dict) else {what[0]: last - first}
        for name, part in parts.items():
            found[name] += part * length / (last - first)
    return found


def spans_of(nodes, start, finish, met, end):
    """Of one NPU: (begin, until, what) with what a category, or with the last member and when they met before."""
    edges = sorted({0, end, *start, *finish, *(t[0] for t in met if t is not None)})
    is_own = [node.type == 4 and not any(a.name == "is_cpu_op" and a.bool_val for a in node.attr) for node in nodes]
    order = {node.id: row for row, node in enumerate(nodes)}
    spans = []
    for begin, until in pairwise(edges):
        what = cause(nodes, start, finish, met, begin, is_own, order)
        if spans and spans[-1][2] == what and len(what) == 3:
            spans[-1] = spans[-1][0], until, what
        else:
            spans.append((begin, until, what))
    return spans


def cause(nodes, start, finish, met, now, is_own, order):
    rows = range(len(nodes))
    if any(is_own[r] and start[r] <= now < finish[r] for r in rows):
        return ("compute",)
    ahead = [r for r in rows if is_own[r] and start[r] > now]
    if ahead:
        at = latest_parent(nodes, min(ahead, key=lambda r: (start[r], r)), finish, order)
    else:
        at = max(rows, key=lambda r: (finish[r], r), default=None)
    if at is None or finish[at] <= now:
        return ("idle",)
    while (parent := latest_parent(nodes, at, finish, order)) is not None and finish[parent] > now:
        at = parent
    if nodes[at].type == 4:
        return ("other",)
    axis = nodes[at].name.split("/")[-1].split(":")[0]
    axis = axis if axis in COMMUNICATION_AXES else "unnamed"
    if met[at] is not None and now < met[at][0]:
        is_bubble = nodes[at].type == 6 or axis in ACROSS
        return ("bubble",) if is_bubble else (axis, *met[at][1:]) if met[at][1] is not None else (axis,)
    return (axis,)


def latest_parent(nodes, row, finish, order):
    parents = sorted(order[d] for d in nodes[row].data_deps)
    return max(parents, key=lambda r: (finish[r], -r), default=None)


def other_ends(made, results):
    """Of each NPU and node: when the sender, or the last member of a collective, had begun; that one; when before."""
    ptr, start = results.npu_node_ptr, results.node_start_ps.tolist()
    sent, met = {}, []
    for npu, nodes in enumerate(made.nodes):
        for row, node in enumerate(nodes):
            if node.type == 5:
                sent[next(a.int32_val for a in node.attr if a.name == "comm_tag")] = start[ptr[npu] + row]
    places = [[row for row, node in enumerate(nodes) if node.type == 7] for nodes in made.nodes]
    begun = [[start[ptr[npu] + rows[i]] for npu, rows in enumerate(places)] for i in range(len(places[0]))]
    for npu, nodes in enumerate(made.nodes):
        own = [None] * len(nodes)
        for row, node in enumerate(nodes):
            if node.type == 6:
                own[row] = sent[next(a.int32_val for a in node.attr if a.name == "comm_tag")], None, None
            if node.type == 7:
                number = places[npu].index(row)
                last = max(range(len(made.nodes)), key=lambda each: (begun[number][each], -each))
                before = max(begun[number - 1]) if number else 0
                own[row] = max(begun[number]), None if last == npu else last, before
        met.append(own)
    return met


@bounded(60)
@given(steps())
def test_is_what_an_npu_waits_for_at_each_moment(made):
    found, results, _ = made.run()
    parts = [slice(*results.npu_node_ptr[npu : npu + 2]) for npu in range(NPUS)]
    start, finish = (
        [column[part].tolist() for part in parts] for column in (results.node_start_ps, results.node_finish_ps)
    )
    expected = naive(made, start, finish, other_ends(made, results), results.finish_time_ps)
    assert np.abs(found - expected).max() <= 1000, "a nanosecond, for what is rounded down"
    assert np.all(found.sum(axis=1) == results.finish_time_ps)


def test_waiting_belongs_to_the_traffic_that_made_a_member_late():
    """NPU 1 gets a larger message than NPU 0 before both compute alike and meet: NPU 0 waits for that message, too."""
    made = Steps(4)
    for npu, size in ((0, 1 << 20), (1, 4 << 20)):
        got = made.message(npu + 2, npu, size, "a/dp:parameters")
        made.add(npu, comp_node, "work", duration_micros=100, deps=[got])
    for npu in range(4):
        made.add(npu, coll_node, "step0/tp:all-reduce", ALL_REDUCE, 1 << 20, deps=[1 if npu < 2 else 0])
    found, results, _ = made.run()
    tp, dp, compute = (found[:, STEP_CATEGORIES.index(name)] for name in ("tp", "dp", "compute"))
    assert compute[0] == compute[1] == 100 * US
    assert dp[0] == dp[1] > 300 * US
    assert tp[0] == pytest.approx(tp[1], rel=0.01)
    assert np.all(found.sum(axis=1) == results.finish_time_ps)


def test_waiting_for_a_member_that_computes_longer_stays_with_the_axis():
    made = Steps(2)
    for npu in range(2):
        made.add(npu, comp_node, "work", duration_micros=100 + 50 * npu)
        made.add(npu, coll_node, "step0/tp:all-reduce", ALL_REDUCE, 3000, deps=[0])
    found, _, _ = made.run()
    tp = found[:, STEP_CATEGORIES.index("tp")]
    assert tp[0] - tp[1] == pytest.approx(50 * US, rel=0.03), "but for the message that is under way"


def pipelined(schedule, p, m, v, forward_us=1000, backward_us=2000):
    """A step whose stages do nothing but their passes, with messages of a byte."""
    made, done = Steps(p), {}
    line = schedule_of(schedule)(p, m, v)
    todo = [line.order(stage) for stage in range(p)]
    last = [[] for _ in range(p)]
    while any(todo):
        for stage in range(p):
            while todo[stage] and pass_(made, done, last, line, stage, todo[stage][0], forward_us, backward_us):
                todo[stage].pop(0)
    return made


def pass_(made, done, last, line, stage, work, forward_us, backward_us):
    is_forward = work.kind == "forward"
    step = -1 if is_forward else 1
    source = line.beside(stage, work.chunk, step)
    deps = list(last[stage])
    if source is not None:
        chunk = (line.position(stage, work.chunk) + step) // line.stages
        sent = done.get((work.kind, work.micro_batch, source, chunk))
        if sent is None:
            return False
        name = f"step0/{work.kind}/mb{work.micro_batch}/pp:message"
        deps.append(made.message(source, stage, 1, name, [sent]) if source != stage else sent)
    length = forward_us if is_forward else backward_us
    node = made.add(stage, comp_node, "pass", duration_micros=length, deps=deps)
    done[work.kind, work.micro_batch, stage, work.chunk] = node
    last[stage] = [node]
    return True


@pytest.mark.parametrize(("schedule", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_bubble_is_p_minus_1_over_v_m(schedule, v):
    p, m = 4, 8
    found, results, _ = pipelined(schedule, p, m, v).run()
    compute, bubble, idle = (found[:, STEP_CATEGORIES.index(name)] for name in ("compute", "bubble", "idle"))
    assert np.all(compute == m * v * 3000 * US)
    assert np.all((bubble + idle) / compute == pytest.approx((p - 1) / (v * m), rel=0.01))
    assert np.all(found.sum(axis=1) == results.finish_time_ps)


def test_names_without_axes_tell_nothing():
    made = Steps(2)
    made.message(0, 1, 10, "send")
    assert not names_an_axis(made.run()[2])

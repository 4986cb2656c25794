"""Pipelines in traces: their time, what waits for which communication, gradients put off, schedules of users."""

import re
from graphlib import TopologicalSorter

import numpy as np
import pytest

from nadi import et
from nadi.inputs import plug_ins
from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.memory import estimate
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.pipeline import KIND
from nadi.workload.generators.training.stages import pipeline_of
from tests.et.parents import all_before, names_of_parents, parents_of
from tests.nonempty import nonempty
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, PREDICTING, flops, sent

_LAYERS = GPT.layers


def makespan(made, duration):
    """When the last node of a set without collectives ends; messages take no time. Naive: one graph of all nodes."""
    parents, takes, sends, receives = {}, {}, {}, []
    for npu, number in nonempty(enumerate(made.trace_of_npu.tolist())):
        trace, names = made.traces[number], list(made.traces[number].names)
        assert made.example_npu[number] == npu
        for row in nonempty(range(len(trace))):
            parents[npu, row] = {(npu, other) for other in parents_of(trace, row)}
            takes[npu, row] = duration(names[row]) if trace.type[row] == et.NodeType.COMP_NODE else 0
            ends = tuple(int(column[row]) for column in (trace.comm_src, trace.comm_dst, trace.comm_tag))
            if trace.type[row] == et.NodeType.COMM_SEND_NODE:
                assert ends not in sends
                sends[ends] = (npu, row)
            elif trace.type[row] == et.NodeType.COMM_RECV_NODE:
                receives.append((ends, (npu, row)))
    for ends, node in receives:
        parents[node].add(sends[ends])
    finish = {}
    for node in TopologicalSorter(parents).static_order():
        finish[node] = takes[node] + max((finish[parent] for parent in parents[node]), default=0)
    return max(finish.values())


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
@pytest.mark.parametrize(
    ("plan", "chunks"),
    [("pp4,1f1b", 1), ("pp4,gpipe", 1), ("pp2", 1), ("pp4,vpp2", 2), ("pp2,vpp4", 4), ("pp2,vpp2", 2)],
)
def test_bubbles_are_the_published_ones(plan, chunks, micro_batches):
    """(p - 1) / m of the work, interleaved (p - 1) / (v m) (arXiv 2104.04473, section 2.2)."""
    made = generate(GPT, parallel_plan(f"{plan},gb{micro_batches}"))
    stages = made.npus
    work = micro_batches * _LAYERS // stages * 6
    takes = {"forward": 2, "backward": 4}

    def duration(name):
        return takes[name.split("/")[1]] if "/layer" in name else 0

    bubble = (stages - 1) * (_LAYERS // stages) * 6 // chunks
    assert makespan(made, duration) == work + bubble


def test_zero_bubble_leaves_a_third():
    """ZB-H1: (p - 1) (F + B - W) with F = B = W (arXiv 2401.10241, table 2); plain 1F1B has (p - 1) (F + B + W)."""
    made = generate(GPT, parallel_plan("pp4,zero-bubble,gb16"))
    assert any("backward-weights" in name for name in made.traces[0].names)
    assert makespan(made, lambda name: int("/layer" in name)) == (16 * 3 + 3) * _LAYERS // 4


@pytest.mark.parametrize(
    ("plan", "waits"), [("1f1b", True), ("vpp2", False), ("vpp2,overlap_p2p=false", True), ("zero-bubble", False)]
)
def test_computations_wait_for_sends_where_messages_are_not_overlapped(plan, waits):
    made = generate(GPT, parallel_plan(f"pp4,{plan},gb8"))
    for trace in nonempty(made.traces):
        ends = zip(trace.dep_ptr.tolist(), trace.dep_ptr[1:].tolist(), trace.type.tolist(), strict=False)
        work = (et.NodeType.COMP_NODE, et.NodeType.COMM_COLL_NODE)
        awaited = {row for begin, end, kind in ends if kind in work for row in trace.dep[begin:end].tolist()}
        sends = [row for row in range(len(trace)) if trace.type[row] == et.NodeType.COMM_SEND_NODE]
        assert {row in awaited for row in sends} == {waits}


class Trace:
    """One trace of a step, by names."""

    def __init__(self, plan, framework="megatron", number=0):
        self.table = generate(LLAMA, parallel_plan(plan), framework).traces[number]
        self.names = list(self.table.names)
        self.before = all_before(self.table)

    def rows(self, *parts):
        return [row for row, name in enumerate(self.names) if all(part in name for part in parts)]

    def computed(self, *parts):
        return [row for row in self.rows(*parts) if self.table.type[row] == et.NodeType.COMP_NODE]

    def wait(self, rows, others):
        """How many of the rows wait for any of the others."""
        return sum(bool(self.before[row] & set(others)) for row in rows)


def test_gradients_are_reduced_beside_the_last_backward_pass():
    trace = Trace("dp4,gb16,bucket_bytes=40000")
    reduced = trace.rows("step0/backward/mb3/", "dp:all-reduce")
    assert len(reduced) > 4
    assert not trace.rows("mb2/", "dp:all-reduce")
    assert trace.wait(trace.computed("/backward/"), reduced) == 0
    assert trace.wait(trace.computed("/optimizer/"), reduced) == len(trace.computed("/optimizer/")) > 0
    assert trace.wait(reduced, trace.computed("mb3/layer7")) == len(reduced)
    assert trace.wait(reduced, trace.computed("backward/mb3/layer0")) < len(reduced) / 2
    late = Trace("dp4,gb16,bucket_bytes=40000,overlap_grad_reduce=false")
    reduced = late.rows("dp:all-reduce", "bucket")
    assert all("/optimizer/" in late.names[row] for row in reduced)
    assert late.wait(reduced, late.computed("backward/mb3/embedding")) == len(reduced)


def test_parameters_come_beside_the_first_forward_pass():
    trace = Trace("dp4,gb16,bucket_bytes=40000,zero1,steps=2")
    gathered = trace.rows("step1/forward/", "dp:all-gather")
    assert trace.wait(gathered, trace.computed("step0/optimizer/step")) == len(gathered)
    layers = [trace.computed(f"step1/forward/mb0/layer{layer}/") for layer in range(8)]
    assert [trace.wait(layer, gathered[-1:]) for layer in layers] == [0] * 8
    assert trace.wait(trace.computed("step1/forward/mb0/head"), gathered[-1:]) == 1
    assert trace.wait(layers[0], gathered[:2]) > 0
    late = Trace("dp4,gb16,bucket_bytes=40000,zero1,overlap_param_gather=false")
    gathered = late.rows("dp:all-gather")
    assert late.wait(gathered, late.computed("optimizer/step")) == len(gathered)


@pytest.mark.parametrize("framework", ["fsdp", "deepspeed"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_layers_are_gathered_ahead(framework, prefetch):
    trace = Trace(f"dp4,gb4,zero3,prefetch={prefetch}", framework)
    for layer in range(8):
        gathered = trace.rows(f"/forward/mb0/layer{layer}/dp:all-gather")
        assert len(gathered) == 1
        assert trace.wait(trace.computed(f"/forward/mb0/layer{layer}/"), gathered) > 0
        if layer >= prefetch:
            assert trace.wait(gathered, trace.computed(f"/forward/mb0/layer{layer - prefetch}/")) == 0
        if layer > prefetch:
            assert trace.wait(gathered, trace.computed(f"/forward/mb0/layer{layer - prefetch - 1}/")) == 1


def test_the_input_is_gathered_again_beside_the_product_for_its_gradient():
    trace = Trace("tp2,sp,gb1")
    gathers = trace.rows("backward/mb0/layer3/mlp/tp:all-gather")
    assert len(gathers) == 2  # of the output's gradient, of the input
    scattered = trace.rows("backward/mb0/layer3/mlp/tp:reduce-scatter")
    products = trace.computed("backward/mb0/layer3/mlp")
    data = [row for row in products if trace.wait([row], gathers[:1]) and not trace.wait([row], gathers[1:])]
    assert trace.wait(data[-1:], gathers[1:]) == 0
    assert trace.wait(scattered, data[-1:]) == 1
    weights = [row for row in products if trace.wait([row], gathers[1:]) and not trace.wait([row], scattered)]
    assert len(weights) == 1


def test_pieces_of_a_product_are_reduced_beside_the_next():
    trace = Trace("tp2,sp,gb1,overlap_tp=true")
    scattered = trace.rows("forward/mb0/layer3/mlp/tp:reduce-scatter")
    products = [row for row in trace.computed("forward/mb0/layer3/mlp") if trace.table.num_ops[row]]
    assert len(scattered) == len(products) == 4
    assert [trace.wait([product], scattered) for product in products] == [0, 0, 0, 0]
    assert [trace.wait(scattered[i : i + 1], products[i : i + 1]) for i in range(4)] == [1, 1, 1, 1]
    assert trace.wait(trace.computed("forward/mb0/layer4/attention"), scattered[3:]) > 0


def test_plain_pipelines_wait_until_messages_are_sent():
    for plan, waits in (("pp2,gb8", True), ("pp2,vpp2,gb8", False)):
        trace = Trace(plan)
        sent = trace.rows("forward/mb0/pp:send")[:1]
        assert (trace.wait(trace.computed("forward/mb1/"), sent) > 0) == waits


PLAN = "tp2,pp2,dp2,sp,zero1,mb1,gb16"  # 8 micro-batches
DEFERRED = re.compile(r"step0/backward-weights/mb(\d+)/head/")


def traces(model, text):
    return generate(model, parallel_plan(text))


def numbers(trace, part):
    """Micro-batches of the deferred rows of a kind, in the order of the trace."""
    found = [(DEFERRED.match(name), name) for name in trace.names]
    return [int(match[1]) for match, name in found if match and name.endswith(part)]


@pytest.mark.parametrize("model", [GPT, LLAMA, DEEPSEEK])
@pytest.mark.parametrize("schedule", ["", ",vpp2"])
@pytest.mark.parametrize("count", [1, 3, 8, 100])
def test_the_last_stage_defers_the_first_micro_batches(model, schedule, count):
    made = traces(model, f"{PLAN}{schedule},defer_embedding_wgrad={count}")
    first, last = made.traces
    expected = list(range(min(count, 8)))
    assert numbers(first, "head-weights") == []
    assert numbers(last, "head-weights") == numbers(last, "tp:all-gather") == expected
    names = list(last.names)
    begin = min(row for row, name in enumerate(names) if DEFERRED.match(name))
    assert max(row for row, name in enumerate(names) if "/backward/" in name) < begin
    before = [name for name in names[:begin] if name.endswith("head-weights")]
    assert len(before) == 8 - len(expected) or not before  # rows of several computations bear another name


@pytest.mark.parametrize("schedule", ["", ",vpp2"])
def test_deferring_changes_when_and_not_what(schedule):
    plain, deferred = traces(LLAMA, f"{PLAN}{schedule}"), traces(LLAMA, f"{PLAN}{schedule},defer_embedding_wgrad=5")
    assert flops(plain) == flops(deferred)

    def sizes(made):
        found = {}
        for (kind, _), size in sent(made).items():
            found[kind] = found.get(kind, 0) + size
        return found

    assert sizes(plain) == sizes(deferred)


def test_gathers_run_beside_the_product_before_and_the_reduction_after_all():
    trace = traces(LLAMA, f"{PLAN},defer_embedding_wgrad=3").traces[1]
    row_of = {name: row for row, name in enumerate(trace.names)}

    def parents(name):
        return names_of_parents(trace, row_of[name])

    prefix = "step0/backward-weights/mb{}/head/"
    for number in (1, 2):
        product, before = (f"{prefix.format(n)}head-weights" for n in (number, number - 1))
        gather = next(n for n in row_of if n.startswith(prefix.format(number)) and n.endswith("tp:all-gather"))
        assert gather in parents(product)
        assert before in parents(product)
        assert before not in parents(gather)  # it begins with, not after, the product before
    reductions = [name for name in row_of if "dp:reduce-scatter" in name]
    assert f"{prefix.format(2)}head-weights" in parents(reductions[-1])


def test_inputs_and_gradients_of_deferred_micro_batches_are_kept():
    """Of each: s b h / t values of the input, and s b v / t of the output's gradient, of 2 bytes."""
    model = find("llama3-70b")
    plan = rules.settle(model, parallel_plan("tp4,pp8,vpp5,dp2,mb1,gb128,sp,zero1,uneven"))

    def stages(count):
        return estimate(model, plan.model_copy(update={"defer_embedding_wgrad": count}))

    tokens, own = 8192, 128256 // 4
    each = 2 * tokens * (8192 // 4 + own + (-own) % 128)
    more = [after.total - before.total for before, after in zip(stages(0), stages(22), strict=True)]
    assert more == [0] * 7 + [22 * each]
    assert stages(64)[-1].total == stages(1000)[-1].total


@pytest.mark.parametrize(
    ("model", "text", "framework", "why"),
    [
        (LLAMA, "dp2", "megatron", "with pp 1"),
        (LLAMA, "pp2,zero3", "fsdp", "only megatron has it"),
        (LLAMA, "pp2,fused_accumulation=false", "megatron", "fused_accumulation=true"),
        (LLAMA, "pp2,zero-bubble", "megatron", "1f1b or interleaved"),
        (PREDICTING, "pp2,uneven", "megatron", "multi-token prediction"),
    ],
)
def test_what_megatron_refuses_is_refused(model, text, framework, why):
    broken = rules.first_broken(model, parallel_plan(f"{text},defer_embedding_wgrad=2"), framework)
    assert broken.startswith("defer_embedding_wgrad is 2")
    assert why in broken
    assert not rules.first_broken(model, parallel_plan(text), framework)


@pytest.mark.full
def test_steps_become_shorter_by_what_the_drain_hides():
    cluster, model = clusters.find("dgx-h100-superpod"), find("llama3-8b")

    def step(text, *, exact):
        plan = rules.settle(model, parallel_plan(f"tp2,pp4,dp2,sp,zero1,mb1,gb64{text}"))
        where = target_machine(cluster, plan.gpus, ComputeTimes(find_gpu("h100"), pace=IN_STEPS))
        return step_time(where, model, plan, "megatron", exact=exact).step_ps

    plain, deferred = step("", exact=True), step(",defer_embedding_wgrad=6", exact=True)
    assert deferred < plain
    assert step(",defer_embedding_wgrad=6", exact=False) == pytest.approx(deferred, rel=2e-3)


@pytest.fixture
def added(tmp_path):
    """Copies of two schedules: their files by the names of the originals."""
    files = {}
    for name in ("1f1b", "interleaved"):
        complaint = f'    def complaint(self):\n        return "{name}" if self.micro_batches == 3 else ""\n'
        files[name] = tmp_path / f"new_{name}.py"
        files[name].write_text(f"{plug_ins.own_files(KIND)[name].read_text()}\n{complaint}")
    return files


@pytest.mark.parametrize(("old", "axes"), [("1f1b", "pp4,gb8"), ("interleaved", "pp2,vpp2,gb8")])
def test_a_copy_in_a_file_does_the_same(added, old, axes):
    plan, wanted = (parallel_plan(f"{axes},{name}") for name in (added[old], old))
    assert str(plan).endswith(f",schedule={added[old]}")
    assert parallel_plan(str(plan)) == plan == parallel_plan(f"{axes},schedule={added[old]}")
    plan, wanted = (rules.settle(GPT, each, "megatron") for each in (plan, wanted))
    rules.check(GPT, plan, "megatron")
    for stage in range(plan.pp):
        assert pipeline_of(plan).in_flight(stage) == pipeline_of(wanted).in_flight(stage)
    made, expected = (generate(GPT, each) for each in (plan, wanted))
    assert np.array_equal(made.trace_of_npu, expected.trace_of_npu)
    for one, other in nonempty(zip(made.traces, expected.traces, strict=True)):
        assert list(one.names) == list(other.names)
        for column in ("type", "num_ops", "comm_size", "comm_tag", "dep_ptr", "dep"):
            assert np.array_equal(getattr(one, column), getattr(other, column)), column


def test_its_complaint_is_the_plans(added):
    plan = rules.settle(GPT, parallel_plan(f"pp2,vpp2,gb3,{added['interleaved']}"), "megatron")
    with pytest.raises(WorkloadError, match=r"schedule .*new_interleaved.py: interleaved"):
        rules.check(GPT, plan, "megatron")


def test_an_unknown_schedule_is_refused_with_those_there_are():
    known = "auto, 1f1b, dualpipe, gpipe, interleaved, zero-bubble"
    with pytest.raises(WorkloadError, match=f"plan: schedule: found '2f2b'; expected one of {known}"):
        parallel_plan("pp2,schedule=2f2b")
    with pytest.raises(WorkloadError, match=r"plan: 'new-1f1b', expected a number after .*, one of sp, uneven"):
        parallel_plan("pp2,new-1f1b")

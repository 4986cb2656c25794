"""Gradients of the output layer's weights that Megatron-Core puts off until the pipeline drains."""

import re

import pytest

from nadi.studies.planner.step import step_time, target_machine
from nadi.topologies import clusters
from nadi.workload.compute import IN_STEPS, ComputeTimes, find_gpu
from nadi.workload.generators.memory import estimate
from nadi.workload.generators.models import find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.generator import generate
from tests.workload.training.counted import flops, sent
from tests.workload.training.small import DEEPSEEK, GPT, LLAMA, PREDICTING

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
        return {
            trace.names[row]
            for row in trace.dep[trace.dep_ptr[row_of[name]] : trace.dep_ptr[row_of[name] + 1]].tolist()
        }

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

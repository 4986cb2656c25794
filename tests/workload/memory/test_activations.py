"""Against the formulas and figures of Korthikanti et al. (arXiv 2205.05198)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.workload.generators.memory.estimate import estimate
from nadi.workload.generators.memory.states import layer_activations
from nadi.workload.generators.models import Experts, LatentAttention, Model, find
from nadi.workload.generators.training import parallel_plan, rules
from nadi.workload.generators.training.stages import pipeline_of
from tests.budgets import bounded
from tests.nonempty import nonempty

GB = 10**9

PAPER = {  # table 3: heads, hidden, layers, pipeline, chunks, global batch, micro-batch; tensor parallelism 8
    "22B": (64, 6144, 48, 1, 1, 4, 4),
    "175B": (96, 12288, 96, 8, 3, 64, 1),
    "530B": (128, 20480, 105, 35, 3, 280, 1),
    "1T": (160, 25600, 128, 64, 1, 512, 1),
}


def gpt(**given):
    values = {"name": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocab": 1000, "sequence": 32, "dropout": True}
    return Model(**(values | given))


def of_layer(model, plan, *, has_experts=False):
    return layer_activations(model, rules.settle(model, plan), has_experts=has_experts)


@bounded(40)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(1, 3), st.integers(1, 4))
def test_a_layer_keeps_what_table_2_says(t, sequences_of_4, b, width):
    model = gpt(hidden=16 * width, heads=4, sequence=4 * sequences_of_4)
    s, h, a = model.sequence, model.hidden, model.heads
    base = parallel_plan(f"tp{t},mb{b},attention=unfused")
    shared = base.model_copy(update={"sequence_parallel": True})
    plain, sharded = of_layer(model, base), of_layer(model, shared)
    assert plain.kept("none") == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)
    assert sharded.kept("none") == pytest.approx(s * b * h / t * (34 + 5 * a * s / h), rel=1e-12)
    assert plain.kept("selective") == pytest.approx(s * b * h * (10 + 24 / t), rel=1e-12)
    assert sharded.kept("selective") == pytest.approx(34 * s * b * h / t, rel=1e-12)
    assert plain.kept("full") == 2 * s * b * h
    assert plain.kept("full") + plain.again("full") == plain.kept("none")


@pytest.mark.parametrize("name", PAPER)
def test_models_need_more_than_80_gb_without_the_papers_techniques_and_less_with_them(name):
    """Figure 1."""
    heads, hidden, layers, pp, vpp, batch, micro_batch = PAPER[name]
    model = gpt(heads=heads, hidden=hidden, layers=layers, sequence=2048, vocab=51200)
    chunks = f",vpp{vpp}" if vpp > 1 else ""
    plan = parallel_plan(f"tp8,pp{pp}{chunks},mb{micro_batch},gb{batch},attention=unfused")
    present = plan.model_copy(update={"sequence_parallel": True, "recompute": "selective"})
    before, after = estimate(model, plan)[0], estimate(model, present)[0]
    framework = before.framework + before.buffers + before.loss
    assert before.total - framework > 80 * GB
    assert after.total - after.framework < 80 * GB
    assert 4.5 < before.activations / after.activations < 6.3  # "by 5x"


def test_the_core_is_most_of_what_a_layer_keeps():
    """Section 5: without it GPT-3 and MT-NLG keep 70 % and 65 % less."""
    for name, saved in (("175B", 0.70), ("530B", 0.65)):
        heads, hidden, *_ = PAPER[name]
        model = gpt(heads=heads, hidden=hidden, sequence=2048)
        kept = of_layer(model, parallel_plan("attention=unfused"))
        assert 1 - kept.kept("selective") / kept.kept("none") == pytest.approx(saved, abs=0.005)


def test_interleaving_holds_as_much_more_as_the_paper_says():
    model = gpt(layers=24)
    for pp, vpp in ((4, 2), (4, 3), (2, 6), (8, 3)):
        plan = rules.settle(model, parallel_plan(f"pp{pp},vpp{vpp},gb{8 * pp}"))
        chunks = pipeline_of(plan).in_flight(0)
        assert sum(chunks) / (pp * vpp) == pytest.approx(1 + (pp - 1) / (pp * vpp))


def order_of_1f1b(stage, pp, vpp, count):
    """Forward and backward steps of a stage, +chunk and ~chunk: as Megatron-Core's schedules have them."""
    chunk_of = [k // pp % vpp for k in range(count * vpp)]
    warm_up = pp - stage - 1 if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp
    warm_up = min(warm_up, count * vpp)
    steps = chunk_of[:warm_up]
    done = 0
    for k in range(warm_up, count * vpp):
        steps += [chunk_of[k], ~(vpp - 1 - chunk_of[done])]
        done += 1
    return steps + [~(vpp - 1 - chunk_of[k]) for k in range(done, count * vpp)]


@bounded(60)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_micro_batches_in_flight_are_those_of_the_schedule_step_by_step(pp, vpp, rounds, data):
    if pp == 1:
        vpp = 1
    count, stage = pp * rounds, data.draw(st.integers(0, pp - 1))
    plan = parallel_plan(f"pp{pp},vpp{vpp},gb{count}")
    holds, most = [0] * vpp, 0
    for step in nonempty(order_of_1f1b(stage, pp, vpp, count)):
        holds[step if step >= 0 else ~step] += 1 if step >= 0 else -1
        assert min(holds) >= 0
        most = max(most, sum(holds))
    assert holds == [0] * vpp
    assert sum(pipeline_of(plan).in_flight(stage)) == most


def test_other_schedules_hold_what_their_papers_say():
    gpipe = parallel_plan("pp4,gb24,gpipe")
    assert pipeline_of(gpipe).in_flight(0) == pipeline_of(gpipe).in_flight(3) == (24,)
    assert [pipeline_of(parallel_plan("pp4,gb24")).in_flight(stage) for stage in range(4)] == [(4,), (3,), (2,), (1,)]
    assert max(pipeline_of(parallel_plan("pp4,gb24,zero-bubble")).in_flight(stage) for stage in range(4)) == (4,)
    dual = parallel_plan("pp4,gb24,dualpipe")
    assert [sum(pipeline_of(dual).in_flight(stage)) for stage in range(4)] == [5] * 4


def test_llama_keeps_tensor_by_tensor_what_its_layer_makes():
    model = find("llama3-8b")
    s, h, f, kv = 8192, 4096, 14336, 1024
    kept = of_layer(model, parallel_plan("dp1"))
    norms_and_their_outputs = 4 * 2 * s * h
    attention = 2 * s * (h + 2 * kv) + 2 * s * h
    assert kept.input + kept.other == norms_and_their_outputs + attention + 2 * s * 3 * f
    assert kept.light == 4 * 32 * s  # flash attention: one number for each head and row
    half = of_layer(model, parallel_plan("cp2"))
    assert 2 * half.kept("none") == kept.kept("none")


def test_more_heads_than_tensor_parallelism_are_kept_once_and_fewer_are_kept_by_all():
    model = find("llama3-8b")
    eight, sixteen = (of_layer(model, parallel_plan(f"tp{tp},sp")).kept("none") for tp in (8, 16))
    keys_and_values = 2 * 2 * 8192 * 128  # of one head, which 16 GPUs cannot share
    assert 16 * sixteen - 8 * eight == 8 * keys_and_values


def test_experts_keep_the_rows_that_come():
    experts = Experts(count=8, top_k=2, ffn=96)
    model = gpt(experts=experts, dropout=False, activation="swiglu", norm="rmsnorm", bias=False)
    dense = of_layer(model.model_copy(update={"ffn": 2 * 96}), parallel_plan("dp8"))
    routed = of_layer(model, parallel_plan("dp8,ep8"), has_experts=True)
    rows, scores = 2 * 32, 4 * 32 * 8
    assert routed.kept("none") - dense.kept("none") == scores + rows * 2 * 64  # the rows come as copies
    half = of_layer(model, parallel_plan("dp8,ep8,capacity=0.5"), has_experts=True)
    assert routed.kept("none") - half.kept("none") == rows // 2 * 2 * (64 + 3 * 96)


def test_latent_attention_keeps_little_where_what_is_projected_up_is_made_anew():
    latent = LatentAttention(query_rank=24, key_value_rank=16, nope_dim=8, rope_dim=4, value_dim=6)
    model = gpt(latent=latent, activation="swiglu", norm="rmsnorm", bias=False, dropout=False, ffn=48)
    kept = of_layer(model, parallel_plan("dp1"))
    tokens, heads = 32, 4
    compressed = 24 + 16 + 4
    selective = 2 * tokens * (64 + 64 + compressed + heads * 6 + 2 * 48)
    assert kept.kept("selective") == selective
    up = heads * (12 + 12 + 6)
    assert kept.kept("none") - selective == 2 * tokens * (2 * 64 + up + 24 + 16 + 48) + 4 * tokens * heads

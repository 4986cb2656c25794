"""Serving: scheduling of requests, operations and bytes of passes, keys and values that move, traces that agree."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nadi import et
from nadi.workload.compute import find_gpu
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.inference.generator import routes
from nadi.workload.generators.inference.requests import Lengths, Request, RequestStream, requests_of
from nadi.workload.generators.inference.scheduler import Batch, BatchLimits, Prompts, Role, schedule
from nadi.workload.generators.memory.estimate import kv_cache_bytes_per_token
from nadi.workload.generators.models import architecture, find
from nadi.workload.generators.models.operations import output_flops, training_flops
from nadi.workload.generators.training import parallel_plan
from nadi.workload.generators.training.parameters import stage_weights
from tests.budgets import bounded
from tests.nonempty import nonempty
from tests.workload.inference import served as small

_LIMITS = BatchLimits(sequences=4, cached_tokens=0, prompt_tokens=100, chunk=0, lanes=1, stages=1)


def of(requests, limits=_LIMITS, role=Role()):  # noqa: B008 - it is immutable
    """Batches of one replica, where each iteration takes 1 us."""
    return [each.batch for each in schedule([requests], limits, role, lambda _: 1.0).iterations[0]]


def test_prompts_go_first_and_whole():
    requests = [Request(number, 0, 60, 3) for number in range(3)]
    assert of(requests) == [
        Batch((Prompts(1, 60, 0),), 0, 0, 1),  # two are beyond 100 tokens
        Batch((Prompts(1, 60, 0),), 0, 0, 1),
        Batch((Prompts(1, 60, 0),), 0, 0, 1),
        Batch((), 3, 61, 3),
        Batch((), 3, 62, 3),
    ]


def test_pieces_of_prompts_fill_what_decoding_leaves():
    requests = [Request(0, 0, 10, 3), Request(1, 0, 25, 2)]
    assert of(requests, _LIMITS._replace(chunk=16)) == [
        Batch((Prompts(1, 10, 0), Prompts(1, 6, 0)), 0, 0, 1),
        Batch((Prompts(1, 15, 6),), 1, 11, 1),
        Batch((Prompts(1, 4, 21),), 1, 12, 2),
        Batch((), 1, 26, 1),
    ]


def test_a_request_waits_for_its_arrival_and_for_the_cache():
    late = [Request(0, 0, 10, 3), Request(1, 50, 10, 2)]
    assert [batch.tokens for batch in of(late)] == [10, 1, 1, 10, 1]
    both = [Request(0, 0, 10, 3), Request(1, 0, 10, 2)]
    assert [batch.tokens for batch in of(both, _LIMITS._replace(cached_tokens=20))] == [10, 1, 1, 10, 1]


def test_replicas_that_keep_step_have_as_many_iterations():
    found = schedule([[Request(0, 0, 10, 3)], []], _LIMITS, Role(), lambda _: 1.0).iterations
    assert [[each.batch.tokens for each in own] for own in found] == [[10, 1, 1], [0, 0, 0]]


@bounded(40)
@given(st.data())
def test_every_token_is_made_once(data):
    draw = data.draw
    count, lanes = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    lengths = Lengths("uniform", 1, 30), Lengths("uniform", 1, 8)
    requests = requests_of(
        RequestStream(count, *lengths, rate=draw(st.sampled_from([0.0, 2e5])), seed=draw(st.integers(0, 99)))
    )
    role = draw(st.sampled_from([Role(), Role(decodes=False), Role(prefills=False)]))
    if not role.prefills:
        requests = [each for each in requests if each.generate > 1]
    limits = BatchLimits(
        draw(st.integers(1, 5)), draw(st.sampled_from([0, 38, 60])), 40, draw(st.sampled_from([0, 8])), lanes, 2
    )
    found = schedule([requests], limits, role, lambda batch: 0.1 * batch.tokens).iterations[0]
    prompts = sum(each.prompt for each in requests) if role.prefills else 0
    answers = sum(each.generate - 1 for each in requests) if role.decodes else 0
    assert sum(each.batch.prompt_tokens for each in found) == prompts
    assert sum(each.batch.decodes for each in found) == answers
    assert [each.number for each in found] == list(range(len(found)))
    assert all(each.batch.decodes <= limits.sequences for each in found)
    joined = sorted(request.number for each in found for request in each.joined)
    assert joined == sorted(each.number for each in requests)
    if limits.chunk and role.prefills:
        assert all(each.batch.tokens <= limits.chunk for each in found)


def test_lengths_and_arrivals_are_drawn_from_the_seed():
    drawn = RequestStream(4000, Lengths.parse("lognormal:500,0.5", "p"), Lengths.parse("uniform:5-9", "g"), rate=10.0)
    requests = requests_of(drawn)
    assert requests == requests_of(drawn) != requests_of(dataclasses.replace(drawn, seed=2))
    assert sorted(each.prompt for each in requests)[2000] == pytest.approx(500, rel=0.05)
    assert {each.generate for each in requests} == {5, 6, 7, 8, 9}
    assert requests[-1].arrival_us == pytest.approx(400e6, rel=0.05)


@pytest.mark.parametrize(
    "text", ["0", "-3", "many", "uniform:9-3", "lognormal:0,1", "lognormal:5,99", "lognormal:5,.", "1e3"]
)
def test_lengths_that_are_none_are_one_line(text):
    with pytest.raises(WorkloadError, match=r"^prompt: .*expected"):
        Lengths.parse(text, "prompt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b,c\n",
        "arrival_s,prompt,generate\n",
        "arrival_s,prompt,generate\n0,5\n",
        "arrival_s,prompt,generate\n0,0,1\n",
        "arrival_s,prompt,generate\nnan,1,1\n",
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path, text):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match="expected") as error:
        requests_of(path)
    assert "\n" not in str(error.value)


def test_a_file_of_requests(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,generate\n1.5,7,3\n0.25,9,4\n")
    assert requests_of(path) == (Request(0, 250_000, 9, 4), Request(1, 1_500_000, 7, 3))


_PROMPT, _ANSWER = 48, 5


def forward_flops(model, tokens, *, causal=False):
    """Operations of a forward pass: a third of a training step's."""
    return training_flops(model, 1, tokens, causal=causal) // 3


def matrices(model):
    """Parameters that a token is multiplied by, without the output layer's."""
    return sum(
        architecture.active(model, part)
        for number in range(model.layers)
        for part in architecture.layer(model, number)
        if part.is_matrix
    )


def copied(model, plan):
    """Parameters whose products every GPU of a tensor-parallel group does, beside the first.

    These are the matrices that compress (latent attention), and without expert parallelism the router.
    """
    own = parallel_plan(plan)
    return (own.tp - 1) * sum(
        part.size
        for number in range(model.layers)
        for part in architecture.layer(model, number)
        if part.is_matrix and part.split == "whole" and (part.part != "router" or own.ep == 1)
    )


@pytest.mark.parametrize("model", [small.SMALL, small.MIXED, small.LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("plan", ["tp1", "tp4", "tp2,pp2", "tp2,dp2"])
def test_a_prefill_is_the_forward_pass_with_one_row_of_logits(model, plan):
    made = small.served(model, plan, small.fixed(4, _PROMPT, 1), batch=4)
    logits = output_flops(model, _PROMPT) - output_flops(model, 1)
    again = 2 * _PROMPT * copied(model, plan)
    assert small.flops(made, "prefill") == 4 * (forward_flops(model, _PROMPT, causal=True) - logits + again)


def test_nothing_is_dropped_out_in_serving():
    trained = small.SMALL.model_copy(update={"dropout": True})
    found, plain = (
        small.operators(small.served(model, "tp2", small.fixed(4, _PROMPT, 1), batch=4), "prefill")
        for model in (trained, small.SMALL)
    )
    assert found == plain


@pytest.mark.parametrize("plan", ["tp2,ep2", "dp4,ep4", "tp2,dp2,ep4", "tp2,dp2,ep4,imbalance=1.2", "dp4,ep2,pp2"])
@pytest.mark.parametrize("model", [small.MIXED, small.LATENT], ids=lambda model: model.name)
def test_experts_do_each_token_once(model, plan):
    """Router, experts and all else, however tokens fall on GPUs: 47 tokens are odd."""
    made = small.served(model, plan, small.fixed(5, 47, 1), batch=2)
    logits = output_flops(model, 47) - output_flops(model, 1)
    again = 2 * 47 * copied(model, plan)
    assert small.flops(made, "prefill") == 5 * (forward_flops(model, 47, causal=True) - logits + again)


@pytest.mark.parametrize("plan", ["tp1", "tp4", "pp2", "tp2,ep2", "dp4,ep4"])
@pytest.mark.parametrize("model", [small.SMALL, small.MIXED, small.LATENT], ids=lambda model: model.name)
def test_decoding_is_two_operations_a_parameter_and_the_cache(model, plan):
    """With latent attention both products of a head and a cached token are as wide as the cache (absorbed form)."""
    if "ep" in plan and model.experts is None:
        return
    made = small.served(model, plan, small.fixed(3, _PROMPT, _ANSWER), batch=3)
    if model.latent is None:
        width = model.query_dim + model.value_dim
    else:
        width = 2 * model.latent.key_value_rank + model.latent.rope_dim
    keys = sum(range(_PROMPT + 1, _PROMPT + _ANSWER))
    attention = model.layers * model.heads * 2 * width * keys
    products = 2 * (matrices(model) + copied(model, plan)) + output_flops(model, 1)
    expected = (_ANSWER - 1) * products + attention
    assert small.flops(made, "decode") == 3 * expected


@pytest.mark.parametrize("plan", ["tp1", "tp2", "tp8"])
@pytest.mark.parametrize("model", [small.SMALL, small.LATENT], ids=lambda model: model.name)
def test_a_step_of_decoding_reads_its_weights_and_its_cache_once(model, plan):
    """Weights are what the GPUs hold, without what is looked up and the norms; with 16 sequences all experts work."""
    made = small.served(model, plan, small.fixed(16, _PROMPT, 2), batch=16)
    own = parallel_plan(plan)
    own = own.model_copy(update={"etp": own.tp}) if model.experts else own
    whole = sum(
        {"tp": part.size, "experts": part.size, "whole": part.size * own.tp,
         "qkv": part.size * (model.heads + 2 * max(own.tp, model.key_value_heads))
                // (model.heads + 2 * model.key_value_heads)}[part.split]
        for part in stage_weights(model, own, 0) if part.is_matrix
    )  # fmt: skip
    read, cache = 0, 0
    for each, count in small.operators(made, "decode").items():
        if each.kind in {"gemm", "batched-gemm", "grouped-gemm"}:
            *groups, _, n, k = each.shape
            read += count * n * k * (groups[0] if groups else 1)
        elif each.kind == "attention":
            batch, _, heads, _, keys, d, dv, _ = each.shape
            cache += count * batch * heads * keys * (d + dv)
        elif each.kind == "latent-attention":
            batch, _, _, keys, rank, rope = each.shape
            cache += count * batch * keys * (rank + rope)
    assert read == whole
    assert 2 * cache == own.tp * 16 * (_PROMPT + 1) * kv_cache_bytes_per_token(model, own)


def test_decoding_on_one_gpu_takes_as_long_as_reading():
    """Batch 1: weights and cache over the bandwidth that memory reaches, and the launches, which add a fifth."""
    model, gpu, prompt = find("llama3-8b"), find_gpu("h100"), 1024
    made = small.served(model, "tp1", small.fixed(1, prompt, 2))
    times = ComputeTimes(gpu)
    counts = small.operators(made, "decode")
    took_ps = sum(count * times.time_ps(each) for each, count in counts.items())
    launches_ps = sum(counts.values()) * (gpu.launch_overhead_ps + gpu.memory_latency_ps)
    held = 2 * (matrices(model) + architecture.output_matrix(model).size)
    cache = kv_cache_bytes_per_token(model) * (prompt + 1)
    least_ps = (held + cache) / (gpu.memory_bandwidth_Bps * times.efficiencies.memory) * 1e12
    assert least_ps + launches_ps <= took_ps <= 1.05 * (least_ps + launches_ps)


_PLANS = [
    ("tp2", "tp2"),
    ("tp4", "tp1"),
    ("tp1,pp2", "tp4"),
    ("tp2,dp2", "tp1,pp4"),
    ("tp8", "tp2,dp2"),
    ("tp2", "tp8"),
]


@pytest.mark.parametrize("transfer", ["layer", "whole"])
@pytest.mark.parametrize(("before", "after"), _PLANS)
@pytest.mark.parametrize("model", [small.SMALL, small.MIXED, small.LATENT], ids=lambda model: model.name)
def test_bytes_are_those_of_the_cache(model, before, after, transfer):
    """Heads once each, or once for each GPU that has a copy of its own; compressed keys once for each GPU."""
    made = small.served(
        model, after, small.fixed(5, 31, 3), batch=2, prefill_plan=before, transfer=transfer, gpu=find_gpu("h100")
    )
    small.check(made)
    plan = parallel_plan(after)
    own = kv_cache_bytes_per_token(model, plan) * plan.tp
    assert small.messages(made, "kv:send") == 5 * 31 * own
    if model.latent is None and plan.tp <= model.key_value_heads:
        assert own == kv_cache_bytes_per_token(model)


@pytest.mark.parametrize("model", [small.SMALL, small.LATENT], ids=lambda model: model.name)
@pytest.mark.parametrize("sizes", [(1, 8), (8, 1), (4, 8), (8, 4), (2, 4), (8, 8)])
def test_senders_have_what_they_send(model, sizes):
    """Each head that a rank needs comes from one rank that holds it, and the work is shared."""
    before, after = (parallel_plan(f"tp{size}") for size in sizes)
    found = routes(model, before, after)
    of_target = {target: sum(r.token_bytes for r in found if r.target == target) for target in range(after.tp)}
    assert set(of_target.values()) == {kv_cache_bytes_per_token(model, after, 1)}
    sent = [sum(r.token_bytes for r in found if r.source == source) for source in range(before.tp)]
    if model.latent is None:
        held = kv_cache_bytes_per_token(model, before, 1)
        copies = max(1, after.tp // model.key_value_heads)
        assert max(sent) <= held * copies


def test_requests_that_arrive_in_time_are_matched():
    requests = small.stream(20, rate=50000.0)
    made = small.served(small.SMALL, "tp2,dp2", requests, batch=3, prefill_plan="tp1,pp2", gpu=find_gpu("h100"))
    small.check(made)
    assert small.messages(made, "kv:send") > 0


_CASES = [
    (small.SMALL, "tp2,pp2,dp2", {}),
    (small.SMALL, "pp4,uneven,tp2", {"chunk": 16}),
    (small.SMALL, "tp4", {"chunk": 8, "kv_tokens": 64}),
    (small.MIXED, "tp2,pp2", {}),
    (small.MIXED, "dp4,ep4,pp2", {}),
    (small.MIXED, "tp2,dp2,ep4,imbalance=1.0", {"chunk": 16}),
    (small.LATENT, "tp4,dp2,ep8,fp8", {"chunk": 16}),
    (small.LATENT, "tp2,dp2,ep2,capacity=1.0,imbalance=0.5", {}),
]


@pytest.mark.parametrize(("model", "plan", "more"), _CASES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("rate", [0.0, 100_000.0])
def test_sends_have_receives_and_members_agree(model, plan, more, rate):
    made = small.served(model, plan, small.stream(11, rate=rate), batch=4, gpu=find_gpu("h100"), **more)
    small.check(made)
    for trace in nonempty(made.traces):
        assert len(et.topological_order(trace)) == len(trace)
    names = [name for trace in made.traces for name in trace.names]
    for number in range(11):
        assert any(name.endswith(f"request{number}/token1") for name in names)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_tokens_of_a_batch_in_flight_may_overtake_another(seed):
    """While one batch waits for a request, the other has several iterations."""
    small.check(
        small.served(small.SMALL, "pp2", small.stream(20, rate=2000.0, seed=seed), batch=4, gpu=find_gpu("h100"))
    )


def test_gpus_of_a_tensor_parallel_group_share_a_trace():
    made = small.served(small.SMALL, "tp4,pp2", small.stream(5), batch=2)
    assert np.bincount(made.trace_of_npu).tolist() == [4, 4]

"""Keys and values go from GPUs that do prompts to those that decode, exactly once to each that needs them."""

import pytest

from nadi.workload.compute import find_gpu
from nadi.workload.generators.inference.generator import routes
from nadi.workload.generators.memory.estimate import kv_cache_bytes_per_token
from nadi.workload.generators.training import parallel_plan
from tests.workload.inference.served import LATENT, MIXED, SMALL, check, fixed, messages, served, stream

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
@pytest.mark.parametrize("model", [SMALL, MIXED, LATENT], ids=lambda model: model.name)
def test_bytes_are_those_of_the_cache(model, before, after, transfer):
    """Heads once each, or once for each GPU that has a copy of its own; compressed keys once for each GPU."""
    made = served(model, after, fixed(5, 31, 3), batch=2, prefill_plan=before, transfer=transfer, gpu=find_gpu("h100"))
    check(made)
    plan = parallel_plan(after)
    own = kv_cache_bytes_per_token(model, plan) * plan.tp
    assert messages(made, "kv:send") == 5 * 31 * own
    if model.latent is None and plan.tp <= model.key_value_heads:
        assert own == kv_cache_bytes_per_token(model)


@pytest.mark.parametrize("model", [SMALL, LATENT], ids=lambda model: model.name)
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
    requests = stream(20, rate=50000.0)
    made = served(SMALL, "tp2,dp2", requests, batch=3, prefill_plan="tp1,pp2", gpu=find_gpu("h100"))
    check(made)
    assert messages(made, "kv:send") > 0

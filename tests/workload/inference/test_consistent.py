"""Traces of serving agree with each other, for all kinds of models, plans and streams."""

import numpy as np
import pytest

from nadi import et
from nadi.workload.compute import find_gpu
from tests.nonempty import nonempty
from tests.workload.inference.served import LATENT, MIXED, SMALL, check, served, stream

_CASES = [
    (SMALL, "tp2,pp2,dp2", {}),
    (SMALL, "pp4,uneven,tp2", {"chunk": 16}),
    (SMALL, "tp4", {"chunk": 8, "kv_tokens": 64}),
    (MIXED, "tp2,pp2", {}),
    (MIXED, "dp4,ep4,pp2", {}),
    (MIXED, "tp2,dp2,ep4,imbalance=1.0", {"chunk": 16}),
    (LATENT, "tp4,dp2,ep8,fp8", {"chunk": 16}),
    (LATENT, "tp2,dp2,ep2,capacity=1.0,imbalance=0.5", {}),
]


@pytest.mark.parametrize(("model", "plan", "more"), _CASES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("rate", [0.0, 100_000.0])
def test_sends_have_receives_and_members_agree(model, plan, more, rate):
    made = served(model, plan, stream(11, rate=rate), batch=4, gpu=find_gpu("h100"), **more)
    check(made)
    for trace in nonempty(made.traces):
        assert len(et.topological_order(trace)) == len(trace)
    names = [name for trace in made.traces for name in trace.names]
    for number in range(11):
        assert any(name.endswith(f"request{number}/token1") for name in names)


def test_gpus_of_a_tensor_parallel_group_share_a_trace():
    made = served(SMALL, "tp4,pp2", stream(5), batch=2)
    assert np.bincount(made.trace_of_npu).tolist() == [4, 4]

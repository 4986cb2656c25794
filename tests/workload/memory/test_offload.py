"""Transfers of an offloaded optimizer, against the volumes of the paper."""

import pytest

from nadi.workload.compute.operators import Operator
from nadi.workload.generators.training import parallel_plan, step_end
from nadi.workload.generators.training.item_lists import Compute
from nadi.workload.generators.training.stages import Shard
from tests.workload.training.small import GPT

STEP = Compute("step", (Operator("optimizer", (10**6, 28), "fp16"),))


@pytest.mark.parametrize(("dtype", "weight_bytes", "gradient_bytes"), [("fp16", 2, 2), ("bf16", 2, 4), ("fp32", 4, 4)])
def test_zero_offload_moves_weights_and_gradients_once_a_step(dtype, weight_bytes, gradient_bytes):
    """Section 3.1 of arXiv 2101.06840: gradients and weights of 2 bytes, each once a step."""
    gradient = "fp16" if gradient_bytes == 2 else "fp32"
    plan = parallel_plan(f"dp4,zero2,grad_dtype={gradient},dtype={dtype},offload=optimizer")
    store, step, load = step_end.step(Shard(GPT, plan), 10**6, STEP)
    assert (store.bytes, store.loads) == (gradient_bytes * 10**6, False)
    assert (load.bytes, load.loads) == (weight_bytes * 10**6, True)
    assert step.needs == (store.key,)
    assert step.on_host_micros > 0


def test_an_optimizer_on_the_gpu_moves_nothing():
    assert step_end.step(Shard(GPT, parallel_plan("dp4,zero2")), 10**6, STEP) == [STEP]

"""What offloading moves, against the volumes of its papers."""

import pytest

from workload.generators.memory.offload import Move, moves_of_layer, moves_of_step
from workload.generators.training import parallel_plan
from workload.generators.training.held import HeldParameters


@pytest.mark.parametrize("replicas", [1, 4])
def test_zero_offload_moves_4_bytes_a_parameter_over_all_gpus(replicas):
    """Section 3.1 of arXiv 2101.06840: gradients and weights of 2 bytes, each once a step."""
    plan = parallel_plan(f"dp{replicas},zero2,grad_dtype=fp16,dtype=fp16,offload=optimizer")
    (move,) = moves_of_step(HeldParameters(10**6, 0, 0), plan)
    assert move == Move("optimizer", "optimizer", 2 * 10**6 // replicas, 2 * 10**6 // replicas)
    assert moves_of_step(HeldParameters(10**6, 0, 0), parallel_plan("dp4,zero2")) == ()


def test_experts_have_fewer_replicas_that_share_them():
    plan = parallel_plan("dp8,ep4,zero1,offload=optimizer")
    (move,) = moves_of_step(HeldParameters(800, 200, 0), plan)
    assert move.load_bytes == 2 * (800 // 8 + 200 // 2)
    assert move.store_bytes == 4 * (800 // 8 + 200 // 2)
    (all_of_it,) = moves_of_step(HeldParameters(800, 200, 0), parallel_plan("dp8,ep4,offload=optimizer"))
    assert all_of_it.load_bytes == 2 * 1000


def test_zero_infinity_loads_a_layer_for_each_pass():
    plan = parallel_plan("dp8,zero3,offload=parameters+activations")
    assert moves_of_layer(1000, 5000, plan) == (
        Move("parameters", "forward", 2000, 0),
        Move("parameters", "backward", 2000, 0),
        Move("activations", "forward", 0, 5000),
        Move("activations", "backward", 5000, 0),
    )
    assert moves_of_layer(1000, 5000, parallel_plan("dp8,zero3")) == ()

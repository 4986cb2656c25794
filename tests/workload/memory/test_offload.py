"""Division of states by offloading, and the transfers of the optimizer, against the volumes of the papers."""

import pytest

from workload.generators.memory.offload import OptimizerTransfers, optimizer_transfers
from workload.generators.training import parallel_plan
from workload.generators.training.parameters import HeldParameters


@pytest.mark.parametrize("replicas", [1, 4])
def test_zero_offload_moves_4_bytes_a_parameter_over_all_gpus(replicas):
    """Section 3.1 of arXiv 2101.06840: gradients and weights of 2 bytes, each once a step."""
    plan = parallel_plan(f"dp{replicas},zero2,grad_dtype=fp16,dtype=fp16,offload=optimizer")
    transfers = optimizer_transfers(HeldParameters(10**6, 0, 0), plan)
    assert transfers == OptimizerTransfers(2 * 10**6 // replicas, 2 * 10**6 // replicas)
    assert optimizer_transfers(HeldParameters(10**6, 0, 0), parallel_plan("dp4,zero2")) is None


def test_experts_have_fewer_replicas_that_share_them():
    plan = parallel_plan("dp8,ep4,zero1,offload=optimizer")
    transfers = optimizer_transfers(HeldParameters(800, 200, 0), plan)
    assert transfers.load_bytes == 2 * (800 // 8 + 200 // 2)
    assert transfers.store_bytes == 4 * (800 // 8 + 200 // 2)
    unsharded = optimizer_transfers(HeldParameters(800, 200, 0), parallel_plan("dp8,ep4,offload=optimizer"))
    assert unsharded.load_bytes == 2 * 1000

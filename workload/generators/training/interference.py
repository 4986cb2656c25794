"""How much slower computation is while collectives run beside it, by framework and GPU (docs/explanation/compute.md).

NCCL's kernels hold one multiprocessor (SM) per channel from their launch to their end. What that costs the computation
beside them depends on whether the framework leaves these SMs free:

- Where it does, computation has the other SMs, and would take SMs / (SMs - channels) times as long at the same clock.
  But products that follow one another are bound by power on Hopper and later (`in_a_row` of a GPU's file): with fewer
  SMs at work the clock rises. So they take as long as the slower of the two allows: of 0.90 x 132 / 116 on H100, 2.4 %
  more, in place of 13.8 %. That the clock rises so far is assumed, not measured.
- Where it does not, matrix products of GPUs with thread block clusters (Hopper and later) take twice as long. Their
  kernels are persistent: they launch one block per SM, and each block has its share of the tiles. With one SM or more
  taken, some blocks wait until the others have ended. Users of FSDP on H100 measured this: matmuls "take 2x as long"
  beside a NCCL kernel that holds about a tenth of the SMs (github.com/pytorch/pytorch/issues/143988; the remedy, an SM
  carve-out, is off by default: pull request 147966). Kernels of older GPUs are not persistent, so they have the other
  SMs.

FSDP's copies between tensors and flat buffers cost its computation as much again (`flat_copies`).
"""

import numpy as np

from topologies.graph import Graph
from workload.collectives.nccl.generations import AUTO, generation_of
from workload.collectives.nccl.planned import planned
from workload.compute.gpu import Gpu
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.rules import Framework
from workload.shape import shape_of

TWO_WAVES = 2.0
"""Times as long that a persistent product takes when not all of its blocks find an SM."""
_HOSTS = 2
"""Hosts whose channels are counted: NCCL plans as many for more."""


def compute_slowdown(framework: Framework, gpu: Gpu, channels: int, *, in_a_row: bool) -> float:
    """Return how many times as long computation takes while a collective runs, to a thousandth.

    On GPUs without a factor `in_a_row` (A100), power is taken to leave no clock to rise.

    Megatron-Core leaves SMs free for NCCL (SM margins of Transformer Engine's kernels, NVTE_FWD_LAYERNORM_SM_MARGIN and
    the like, as NVIDIA's recipes set them). PyTorch FSDP and DeepSpeed leave none.

    Args:
        framework: Framework of the training step; "inference" runs nothing beside its collectives, and gives 1.
        gpu: GPU that does both.
        channels: NCCL's channels, each of which holds one SM.
        in_a_row: Whether times of products count with the power that they have in a row (workload.compute.Pace).
    """
    if framework == "inference" or channels >= gpu.sms:  # a TPU has no SMs that a collective could hold
        return 1.0
    share = gpu.sms / (gpu.sms - channels)
    is_persistent = gpu.cluster > 1
    if is_persistent and framework != "megatron":
        return round(max(TWO_WAVES, share), 3)
    power = gpu.in_a_row.get("bf16", 1.0) if in_a_row else 1.0
    return round(max(1.0, share * power), 3)


def copied_groups(framework: Framework, plan: ParallelPlan) -> frozenset[str]:
    """Return the names of groups whose collectives copy engines do, so that they hold no SMs.

    With overlap_tp, Megatron-Core exchanges the pieces of tensor-parallel collectives by Transformer Engine's
    userbuffers, most of them by copy engines.
    """
    return frozenset({"tp"}) if framework == "megatron" and plan.overlap_tp else frozenset()


def channels_on(graph: Graph) -> int:
    """Return the channels that NCCL's communicators use on a fabric, over several hosts where it has several."""
    first = np.unique(graph.host[: graph.npus])[:_HOSTS]
    members = np.flatnonzero(np.isin(graph.host[: graph.npus], first))
    if len(members) < _HOSTS:
        return 0
    shape = shape_of(graph, members)
    return planned(shape, generation_of(AUTO, shape.accelerator, shape.lines_bps[0])).used

"""Slowdown of computation that overlaps collectives, by framework and GPU (docs/explanation/compute.md).

NCCL's kernels occupy one multiprocessor (SM) per channel from launch to end. The slowdown of overlapped computation
depends on whether the framework leaves these SMs free:

- If it does, computation uses the other SMs and would take SMs / (SMs - channels) times as long at the same clock. But
  on Hopper and later, power limits consecutive products (`in_a_row` of a GPU's file), and with fewer active SMs the
  clock rises. So the slower of the two limits applies: on H100, 0.87 x 132 / 108 is 6.3 % more time
  with 24 channels instead of 22.2 %, and none with 16.
  That the clock rises so far is an assumption, not a measurement. It does not rise beside the kernels of DeepEP and
  HybridEP, which keep their SMs and the memory busy without a break. Beside these, operators that memory limits are as
  fast with the SMs that are left; the others are two thirds to four fifths of the computation of Qwen3, GPT-OSS and
  DeepSeek-V3 by the times of their operators.
- If it does not, matrix products on GPUs with thread block clusters (Hopper and later) take twice as long. Their
  kernels are persistent: they launch one block per SM, and each block computes its share of the tiles. If at least one
  SM is occupied, some blocks wait until others have ended. Users of FSDP on H100 measured this: matmuls "take 2x as
  long" during a NCCL kernel that occupies about a tenth of the SMs (github.com/pytorch/pytorch/issues/143988; the
  remedy, an SM carve-out, is off by default: pull request 147966). Kernels of older GPUs are not persistent and use
  the other SMs. So it is beside an exchange of tokens, too, unless products of experts are fused
  (`products_leave_sms`). CUTLASS describes the effect for its static scheduler of tiles
  (docs/cpp/blackwell_cluster_launch_control).

FSDP's copies between tensors and flat buffers add a similar cost (`item_lists`).
"""

from collections.abc import Sequence

import numpy as np

from nadi.topologies import Graph
from nadi.workload.collectives.nccl.channel_orders import planned
from nadi.workload.collectives.nccl.generations import AUTO, generation_of
from nadi.workload.compute.gpu import Gpu
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.rules import Framework
from nadi.workload.shape import shape_of

_PRODUCTS_SHARE = 0.75  # Share of products and attention in the computation of mixtures of experts
TWO_WAVES = 2.0  # Slowdown of a persistent product if not all of its blocks find a free SM
_HOSTS = 2  # Number of hosts for which channels are planned: NCCL uses as many channels for more hosts


def compute_slowdown(
    framework: Framework,
    gpu: Gpu,
    channels: int,
    *,
    in_a_row: bool,
    dispatch_sms: int = 0,
    leaves_sms: bool = True,
) -> float:
    """Return the factor on the time of computation while a collective runs, rounded to a thousandth.

    On GPUs without a factor `in_a_row` (A100), the clock is assumed not to rise. Megatron-Core leaves SMs free for NCCL
    (SM margins of Transformer Engine's kernels, NVTE_FWD_LAYERNORM_SM_MARGIN and the like, as NVIDIA's recipes set
    them), unless its plan says otherwise. PyTorch FSDP and DeepSpeed leave none. Inference overlaps nothing with its
    collectives.

    Args:
        framework: The framework that runs the computation: "megatron", "deepspeed", "fsdp" or "inference".
        gpu: The GPU that runs the work.
        channels: The number of NCCL's channels, which occupy one SM each.
        in_a_row: Whether times of products include the power limit of consecutive products (compute.SustainedShare).
        dispatch_sms: The number of SMs that the kernels of DeepEP or HybridEP hold beside computation; 0 = none.
        leaves_sms: Whether products of "megatron" leave the SMs free that NCCL or the dispatcher holds.
    """
    channels = max(channels, dispatch_sms)
    if framework == "inference" or channels >= gpu.sms:  # a TPU has no SMs that a collective could hold
        return 1.0
    share = gpu.sms / (gpu.sms - channels)
    is_persistent = gpu.exposed_write < 0.5
    has_waves = is_persistent and not (framework == "megatron" and leaves_sms)
    if has_waves:
        share = max(TWO_WAVES, share)
    if dispatch_sms:
        return round(_PRODUCTS_SHARE * share + 1 - _PRODUCTS_SHARE, 3)
    power = gpu.in_a_row.get("bf16", 1.0) if in_a_row and not has_waves else 1.0
    return round(max(1.0, share * power), 3)


def products_leave_sms(plan: ParallelPlan) -> bool:
    """Return whether Megatron's products leave the SMs free that kernels beside them hold.

    Args:
        plan: The settled parallel plan.
    """
    # Where the exchange of tokens runs beside products, only NVIDIA's recipes with fused products of experts do so:
    # CUDNNFE_CLUSTER_OVERLAP_MARGIN of Megatron-Bridge, scripts/performance/perf_plugins.py. Others leave SMs free in
    # norms alone (NVTE_FWD_LAYERNORM_SM_MARGIN).
    overlaps = bool(plan.overlap_ep) and plan.ep > 1
    return plan.leaves_sms and (bool(plan.fused_experts) or not overlaps)


def copied_groups(framework: Framework, plan: ParallelPlan) -> frozenset[str]:
    """Return the names of group families whose collectives run on copy engines and therefore occupy no SMs.

    Args:
        framework: The training framework: "megatron", "deepspeed" or "fsdp".
        plan: The settled parallel plan.
    """
    # With overlap_tp, Megatron-Core exchanges the pieces of tensor-parallel collectives by Transformer Engine's
    # userbuffers, most of them by copy engines.
    uses_userbuffers = framework == "megatron" and plan.overlap_tp and "userbuffers" not in plan.without
    return frozenset({"tp"}) if uses_userbuffers else frozenset()


def channels_on(graph: Graph, memory_nodes: Sequence[int] = ()) -> int:
    """Return the channels that NCCL's communicators use on a fabric, over several hosts where it has several.

    Args:
        graph: The fabric as a graph of nodes and links.
        memory_nodes: The endpoints of the fabric that are remote memories, not GPUs.
    """
    gpus = np.setdiff1d(np.arange(graph.npus), memory_nodes)
    members = gpus[np.isin(graph.host[gpus], np.unique(graph.host[gpus])[:_HOSTS])]
    if len(members) < _HOSTS:
        return 0
    shape = shape_of(graph, members)
    return planned(shape, generation_of(AUTO, shape.accelerator, shape.lines_bps[0])).used

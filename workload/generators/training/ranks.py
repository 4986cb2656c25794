"""Ranks of the NPUs of a plan, and their groups.

As in Megatron-LM, the tensor-parallel rank changes fastest, then the ranks of context parallelism, data parallelism and
the pipeline. Experts divide the same GPUs of a stage differently: the expert-tensor-parallel rank changes fastest, then
the expert-parallel rank, then the replica of experts (core/parallel_state.py, order tp-cp-ep-dp-pp).
"""

from typing import NamedTuple

import numpy as np

from nadi.workload.generators.training.parallel_plan import ParallelPlan


class RankPlace(NamedTuple):
    """Ranks of an NPU."""

    tp: int  # Rank in the tensor-parallel group
    cp: int  # Rank in the ring of context parallelism
    dp: int  # Number of the replica
    stage: int  # Number of the pipeline stage
    ep: int  # Rank in the expert-parallel group


def place(plan: ParallelPlan, npu: int) -> RankPlace:
    """Return the ranks of an NPU in the plan's axes.

    Args:
        plan: The settled parallel plan.
        npu: The number of the NPU.
    """
    rest, tp = divmod(npu, plan.tp)
    rest, cp = divmod(rest, plan.cp)
    stage, dp = divmod(rest, plan.dp)
    return RankPlace(tp, cp, dp, stage, npu % stage_size(plan) // plan.etp % plan.ep)


def stage_size(plan: ParallelPlan) -> int:
    """Return the number of NPUs per stage.

    Args:
        plan: The settled parallel plan.
    """
    return plan.tp * plan.cp * plan.dp


def families(plan: ParallelPlan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the groups of more than one NPU by family.

    - tp, cp, ep, etp: groups of the plan's axes; adapters: the same as tp,
    - pp: NPUs with the same rank in each stage,
    - dp: replicas of dense parameters, over data and context parallelism,
    - edp: replicas of experts,
    - model: all stages and the tensor-parallel group of one replica,
    - embedding: NPUs with the same rank in the first and the last stage,
    - world: all NPUs,
    - dp-other, edp-other: with DualPipe two stages hold each slice of the model, and their replicas form one group; dp
      and edp are for the slices of the first half, dp-other and edp-other for those of the second half.

    Args:
        plan: The settled parallel plan.
    """
    npus = np.arange(plan.gpus).reshape(plan.pp, plan.dp, plan.cp, plan.tp)
    experts = np.arange(plan.gpus).reshape(plan.pp, -1, plan.ep, plan.etp)
    by_axis = {
        "tp": npus,
        "adapters": npus,
        "cp": npus.transpose(0, 1, 3, 2),
        "pp": npus.transpose(1, 2, 3, 0),
        "model": npus.transpose(1, 2, 0, 3).reshape(plan.dp, plan.cp, -1),
        "embedding": npus[[0, -1]].transpose(1, 2, 3, 0) if plan.pp > 1 else npus[..., :0],
        "world": npus.reshape(1, -1),
        "ep": experts.transpose(0, 1, 3, 2),
        "etp": experts,
    }
    if plan.is_mirrored:
        # Stage s and stage pp - 1 - s hold the same slices: their replicas form one group
        mirrored = np.concatenate([npus, npus[::-1]], axis=1)[: plan.pp // 2]
        by_axis["dp"] = by_axis["dp-other"] = mirrored.transpose(0, 3, 1, 2).reshape(-1, 2 * plan.dp * plan.cp)
        twice = np.concatenate([experts, experts[::-1]], axis=1)[: plan.pp // 2]
        by_axis["edp"] = by_axis["edp-other"] = twice.transpose(0, 2, 3, 1)
    else:
        by_axis["dp"] = npus.transpose(0, 3, 1, 2).reshape(-1, plan.dp * plan.cp)
        by_axis["edp"] = experts.transpose(0, 2, 3, 1)
    return {
        name: tuple(map(tuple, array.reshape(-1, array.shape[-1]).tolist()))
        for name, array in by_axis.items()
        if array.shape[-1] > 1
    }


def neighbours(plan: ParallelPlan, npu: int) -> tuple[int, int]:
    """Return the next and the previous NPU in the ring of context parallelism.

    Args:
        plan: The settled parallel plan.
        npu: The number of the NPU.
    """
    rank = place(plan, npu).cp
    first = npu - rank * plan.tp
    after, before = (rank + 1) % plan.cp, (rank - 1) % plan.cp
    return first + after * plan.tp, first + before * plan.tp

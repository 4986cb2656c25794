"""Numbers of the NPUs of a plan, and their groups.

As in Megatron-LM the tensor-parallel rank changes fastest, then that of context parallelism, of data parallelism and of
the pipeline. Experts cut a stage's GPUs anew: expert-tensor parallelism fastest, then expert parallelism, then the
replicas of experts (core/parallel_state.py, order tp-cp-ep-dp-pp).
"""

from typing import NamedTuple

import numpy as np

from workload.generators.training.parallel_plan import ParallelPlan


class RankPlace(NamedTuple):
    """Where an NPU stands.

    Attributes:
        tp, cp, dp, stage: ranks of the axes.
        ep: rank among the GPUs that share experts.
    """

    tp: int
    cp: int
    dp: int
    stage: int
    ep: int


def place(plan: ParallelPlan, npu: int) -> RankPlace:
    """Of an NPU."""
    rest, tp = divmod(npu, plan.tp)
    rest, cp = divmod(rest, plan.cp)
    stage, dp = divmod(rest, plan.dp)
    return RankPlace(tp, cp, dp, stage, npu % stage_size(plan) // plan.etp % plan.ep)


def stage_size(plan: ParallelPlan) -> int:
    """NPUs of a stage."""
    return plan.tp * plan.cp * plan.dp


def families(plan: ParallelPlan) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Groups of more than one NPU.

    pp: the stages of a pipeline, at one place in each; dp: replicas of what is not an expert, over data and context
    parallelism; edp: those of experts; model: all stages and the tensor-parallel group of one replica; embedding: the
    first and the last stage; world: all. With DualPipe each slice of the model is on two stages, whose replicas are one
    group; dp-other is the same for the other slice.
    """
    npus = np.arange(plan.gpus).reshape(plan.pp, plan.dp, plan.cp, plan.tp)
    experts = np.arange(plan.gpus).reshape(plan.pp, -1, plan.ep, plan.etp)
    by_axis = {
        "tp": npus,
        "cp": npus.transpose(0, 1, 3, 2),
        "pp": npus.transpose(1, 2, 3, 0),
        "model": npus.transpose(1, 2, 0, 3).reshape(plan.dp, plan.cp, -1),
        "embedding": npus[[0, -1]].transpose(1, 2, 3, 0) if plan.pp > 1 else npus[..., :0],
        "world": npus.reshape(1, -1),
        "ep": experts.transpose(0, 1, 3, 2),
        "etp": experts,
    }
    if plan.is_mirrored:
        mirrored = np.concatenate([npus, npus[::-1]], axis=1)[: plan.pp // 2]
        by_axis["dp"] = by_axis["dp-other"] = mirrored.transpose(0, 3, 1, 2).reshape(-1, 2 * plan.dp * plan.cp)
        twice = np.concatenate([experts, experts[::-1]], axis=1)[: plan.pp // 2]
        by_axis["edp"] = by_axis["edp-other"] = twice.transpose(0, 2, 3, 1)
    else:
        by_axis["dp"] = npus.transpose(0, 3, 1, 2).reshape(-1, plan.dp * plan.cp)
        by_axis["edp"] = experts.transpose(0, 2, 3, 1)
    return {name: groups for name, array in by_axis.items() if (groups := _groups(array))}


def neighbours(plan: ParallelPlan, npu: int) -> tuple[int, int]:
    """The NPUs after and before in the ring of context parallelism."""
    where = place(plan, npu)
    first = npu - where.cp * plan.tp
    after, before = (where.cp + 1) % plan.cp, (where.cp - 1) % plan.cp
    return first + after * plan.tp, first + before * plan.tp


def _groups(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Rows of the last dimension, none if they are of one NPU."""
    if array.shape[-1] < 2:
        return ()
    return tuple(map(tuple, array.reshape(-1, array.shape[-1]).tolist()))

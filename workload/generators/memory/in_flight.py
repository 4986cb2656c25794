"""Maximum number of micro-batches between their forward and backward passes on a stage."""

from workload.generators.training import pipeline
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import micro_batches


def in_flight(plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """Return the number of micro-batches per chunk whose activations a stage holds when it holds the most.

    The modules of the schedules (workload.generators.training.pipeline) define the numbers:

    - 1F1B: pp - i on stage i.
    - Interleaved (Narayanan et al., arXiv 2104.04473, section 2.2, as in Megatron-Core's schedules.py):
      2 (pp - i - 1) + (vpp - 1) pp forward passes precede the first backward pass, plus one. The first stage holds
      1 + (pp - 1) / (pp vpp) times as much as with 1F1B (arXiv 2205.05198, section 4.2.3).
    - Zero-bubble (ZB-H1, arXiv 2401.10241): at most as many as 1F1B's first stage.
    - DualPipe (arXiv 2412.19437, table 2): pp + 1 in total.
    - GPipe: all.

    Args:
        plan: Settled plan that `rules.check` accepts.
        stage: Number of the stage, from 0.
    """
    schedule = plan.pipeline_schedule
    chunks = pipeline.chunks(schedule, plan.vpp)
    return pipeline.in_flight_of_chunks(schedule, stage, plan.pp, micro_batches(plan), chunks)

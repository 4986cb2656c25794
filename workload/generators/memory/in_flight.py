"""How many micro-batches a stage has gone forward with and not yet backward, at most."""

from workload.generators.training import pipeline
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import micro_batches


def in_flight(plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """For each chunk of a stage, how many micro-batches' activations it holds at the worst moment.

    1F1B: stage i has pp - i. Interleaved (Narayanan et al., arXiv 2104.04473, section 2.2, as Megatron-Core's
    schedules.py): 2 (pp - i - 1) + (vpp - 1) pp chunks have gone forward before the first goes backward, and one more;
    the first stage then has 1 + (pp - 1) / (pp vpp) times what 1F1B has (arXiv 2205.05198, section 4.2.3). Zero-bubble
    (ZB-H1, arXiv 2401.10241): no stage has more than 1F1B's first. DualPipe (arXiv 2412.19437, table 2): pp + 1 in all.
    GPipe: all. The schedules say so themselves (workload.generators.training.pipeline).

    Args:
        plan: settled, and passed by `rules.check`.
        stage: from 0.
    """
    schedule = plan.pipeline_schedule
    chunks = pipeline.chunks(schedule, plan.vpp)
    return pipeline.in_flight_of_chunks(schedule, stage, plan.pp, micro_batches(plan), chunks)

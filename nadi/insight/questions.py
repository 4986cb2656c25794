"""What a run answers, as questions whose classes have errors in validation (nadi.validation)."""

from collections.abc import Iterator
from dataclasses import replace

from nadi.inputs.units import PS_PER_S
from nadi.insight.run_analysis import RunAnalysis
from nadi.insight.work_metrics import throughput
from nadi.simulation.run import FinishedRun
from nadi.validation import ErrorBar, Question, error_bars, serving_questions, step_question
from nadi.workload.compute import find_gpu


def error_bars_of(simulation: FinishedRun, analysis: RunAnalysis | None) -> list[ErrorBar]:
    """Return how far the answers of a run may be trusted.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run; None = no analysis.
    """
    return error_bars(_questions(simulation, analysis))


def _questions(simulation: FinishedRun, analysis: RunAnalysis | None) -> Iterator[Question]:
    """Yield the questions that a run answers, those of the whole run and not of its parts."""
    config = simulation.config
    faults = bool(config.faults)
    gpu = find_gpu(config.compute.gpu).name if config.compute.gpu else ""
    if simulation.jobs:
        yield Question(subject="jobs")
    elif analysis and analysis.serving:
        from nadi.workload.generators.models import find

        model, plan = config.workload.model, config.workload.plan
        experts = model is not None and find(model).experts is not None
        for question in serving_questions(simulation.graph, gpu, plan.dtype if plan else "", experts=experts):
            yield replace(question, faults=faults)
    elif simulation.training is not None:
        rates = throughput(simulation, analysis.done_steps if analysis else None)
        time_s = None if rates is None else rates.time_ps / PS_PER_S
        model_and_plan = simulation.training.model, simulation.training.plan
        yield replace(step_question(*model_and_plan, config.workload.framework, gpu, time_s), faults=faults)
    else:
        yield Question(subject="messages" if config.workload.traffic is not None else "traces", faults=faults)

"""Step time of a plan by flows: all communication of the step at once, on the whole fabric.

Collectives are coupled flows. As at closed forms, long steps are extrapolated from two with fewer micro-batches.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from nadi.configuration.sections import NetworkSection
from nadi.inputs.units import PS_PER_S
from nadi.launching.progress import NoProgress
from nadi.pdes.fidelity import FLUID
from nadi.simulation import network_settings as fabric
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.studies.planner.step import TargetMachine, program_of, shorter_plans, slowdown
from nadi.topologies.clusters import Cluster
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import ParallelPlan, rules
from nadi.workload.generators.training.generator import generate


class FlowStepTime(NamedTuple):
    """Step time of a plan with contention."""

    step_ps: float  # step time in ps

    def document(self) -> dict[str, Any]:
        """Return the entries of a plan's row of the document."""
        return {"flows_step_s": self.step_ps / PS_PER_S}


def flow_step_time(
    cluster: Cluster, machine: TargetMachine, model: Model, plan: ParallelPlan, framework: rules.Framework
) -> FlowStepTime:
    """Return the step time by flows of a settled plan on a machine of the cluster.

    Args:
        cluster: The cluster with its network settings.
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
    """
    section = NetworkSection.model_validate({**cluster.network, "fidelity": FLUID})
    settings = fabric.fitted(machine.graph, network_settings(section, record_nodes=False, record_flows=False))
    settings = replace(settings, compute_slowdown=slowdown(machine, framework))

    def step_ps(plan: ParallelPlan) -> int:
        program = program_of(machine, generate(model, plan, framework))
        coupled = coupled_collectives(program, machine.costs, machine.collectives)
        return run_program(machine.graph, program, replace(settings, coupled=coupled), NoProgress()).finish_time_ps

    shorter = shorter_plans(plan)
    if shorter is None:
        return FlowStepTime(step_ps(plan))
    *two, factor = shorter
    first_ps, second_ps = (step_ps(short) for short in two)
    return FlowStepTime(second_ps + factor * (second_ps - first_ps))

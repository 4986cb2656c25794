"""Step time of one plan on one cluster at closed forms; long steps are extrapolated from two short ones.

A pipeline in its steady state is periodic: each further micro-batch adds the same time. So the planner simulates two
steps of `_SHORT` and `_LONGER` rounds of the pipeline and extrapolates linearly to many micro-batches. `exact=True`
simulates the whole step; the difference is the error of the extrapolation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import topologies, workload
from nadi.configuration.sections import NetworkSection
from nadi.energy import NPU_TIMES, PortUse
from nadi.insight.node_times import npu_times
from nadi.insight.step_times import step_times
from nadi.launching.progress import NoProgress
from nadi.pdes import Results, Settings, fidelity
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, CollectiveCosts
from nadi.simulation.closed_forms.sent_bytes import sent_by_ports
from nadi.simulation.fidelities import fabric_settings as fabric
from nadi.simulation.fidelities import network_settings
from nadi.simulation.schemas import STEP_CATEGORIES
from nadi.topologies import Graph
from nadi.topologies.clusters import Cluster
from nadi.workload import CollectiveSettings, ComputeModel, Program, TraceSet
from nadi.workload.collectives import defaults_on
from nadi.workload.compute import ComputeTimes
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import ParallelPlan, channels_on, compute_slowdown, rules
from nadi.workload.generators.training.generator import generate

_SHORT, _LONGER = 2, 3  # rounds of the pipeline in the two short steps: micro-batches per stage


@dataclass(frozen=True)
class TargetMachine:
    """The GPUs, fabric and cost models on which plans are timed."""

    graph: Graph  # fabric of all GPUs
    settings: Settings  # settings of the packet network that the closed forms assume
    collectives: CollectiveSettings  # algorithms and settings of collectives
    compute: ComputeModel  # operator times of the GPU
    costs: CollectiveCosts  # cached collective costs of the fabric, shared by all plans
    channels: int = 0  # number of NCCL channels, each occupying one SM while a collective runs


def target_machine(
    cluster: Cluster,
    num_gpus: int,
    operator_times: ComputeTimes,
    fabric_keys: Mapping[str, object] | None = None,
    network_keys: Mapping[str, object] | None = None,
) -> TargetMachine:
    """Return the first GPUs of a cluster with their fabric; keys override those of its topology and [network].

    Args:
        cluster: The cluster with its network settings.
        num_gpus: The number of GPUs to use.
        operator_times: The times of operators on the cluster's GPU.
        fabric_keys: Parameters of the topology that replace those of the cluster.
        network_keys: Keys of [network] that replace those of the cluster.
    """
    graph = topologies.build(cluster.with_parameters(fabric_keys or {}).topology(num_gpus))
    section = NetworkSection.model_validate({**cluster.network, **(network_keys or {}), "fidelity": fidelity.FASTEST})
    settings = fabric.fitted(graph, network_settings(section, record_flows=False))
    collectives = CollectiveSettings(defaults_on(graph) | cluster.collectives)
    costs = CollectiveCosts(graph, settings, PLANNER_EFFORT)
    return TargetMachine(graph, settings, collectives, ComputeModel(times=operator_times), costs, channels_on(graph))


class EnergyUse(NamedTuple):
    """Activity in a step that consumes energy."""

    npu_ps: NDArray[np.float64]  # float64[len(NPU_TIMES)], GPU time by activity in ps, summed over all GPUs
    ports: Mapping[str, PortUse]  # ports by type with the bytes that they send


class StepTime(NamedTuple):
    """Duration and breakdown of a step."""

    step_ps: float  # step time of the slowest GPU in ps
    share_ps: NDArray[np.float64]  # float64[len(CATEGORIES)], time of a GPU by category in ps, mean over all GPUs
    use: EnergyUse  # activity of GPUs and ports that consumes energy
    is_whole: bool  # whether the whole step was simulated; False = extrapolated from two short steps

    def at_least(self, minimum_ps: float) -> "StepTime":
        """Return the step with all its times in proportion, so that it takes `minimum_ps` at least."""
        if self.step_ps >= minimum_ps:
            return self
        factor = minimum_ps / self.step_ps
        use = self.use._replace(npu_ps=self.use.npu_ps * factor)
        return self._replace(step_ps=minimum_ps, share_ps=self.share_ps * factor, use=use)

    def of(self, category: str) -> float:
        """Return the share of the step, 0 to 1, that a GPU spends in a category."""
        return float(self.share_ps[STEP_CATEGORIES.index(category)] / self.step_ps)


def step_time(
    machine: TargetMachine, model: Model, plan: ParallelPlan, framework: rules.Framework, *, exact: bool = False
) -> StepTime:
    """Return a settled plan's step time at closed forms.

    Args:
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
        exact: Whether all micro-batches are simulated; False extrapolates from a few.
    """
    shorter = None if exact else shorter_plans(plan)
    if shorter is None:
        return _run(machine, model, plan, framework)
    *two, factor = shorter
    first, second = (_run(machine, model, short, framework) for short in two)
    ports = {}
    for name, ports_used in second.use.ports.items():
        before = first.use.ports.get(name, ports_used._replace(tx_bytes=0.0)).tx_bytes
        # Linear, as times: each further micro-batch sends the same bytes. The number of ports does not change.
        ports[name] = ports_used._replace(tx_bytes=ports_used.tx_bytes + factor * (ports_used.tx_bytes - before))
    return StepTime(
        second.step_ps + factor * (second.step_ps - first.step_ps),
        second.share_ps + factor * (second.share_ps - first.share_ps),
        EnergyUse(second.use.npu_ps + factor * (second.use.npu_ps - first.use.npu_ps), ports),
        is_whole=False,
    )


def shorter_plans(plan: ParallelPlan) -> tuple[ParallelPlan, ParallelPlan, float] | None:
    """Return the plan with two smaller numbers of micro-batches, and a factor; None if the plan itself is short.

    The second step plus factor times the difference of both is the whole step.
    """
    micro_batches = plan.global_batch // (plan.dp * plan.micro_batch)
    deferring = deferring_rounds(plan)
    short, longer = (_SHORT + deferring) * plan.pp, (_LONGER + deferring) * plan.pp
    if micro_batches <= longer:
        return None
    # with 4 stages and 64 micro-batches: steps of 8 and 12, and (64 - 12) / (12 - 8) = 13 more differences
    factor = (micro_batches - longer) / (longer - short)
    return with_micro_batches(plan, short), with_micro_batches(plan, longer), factor


def deferring_rounds(plan: ParallelPlan) -> int:
    """Return the rounds whose embedding gradients are deferred; short steps need further rounds after these.

    Args:
        plan: The parallel plan, with all values settled.
    """
    return -(-plan.defer_embedding_wgrad // plan.pp)


def with_micro_batches(plan: ParallelPlan, num_micro_batches: int) -> ParallelPlan:
    """Return the plan with a global batch of `num_micro_batches` micro-batches.

    Args:
        plan: The parallel plan, with all values settled.
        num_micro_batches: The number of micro-batches of a pipeline.
    """
    return plan.model_copy(update={"global_batch": num_micro_batches * plan.dp * plan.micro_batch})


def program_of(machine: TargetMachine, traces: TraceSet) -> Program:
    """Return the program of traces on the machine."""
    return workload.build_program(
        traces.traces,
        traces.trace_of_npu,
        machine.graph.npus,
        {},
        machine.compute,
        replace(machine.collectives, copied=traces.copied),
        fabric=machine.graph,
        example_npu=traces.example_npu,
        families=traces.families,
        kept=machine.costs.kept,
    )


def run_closed_form(
    machine: TargetMachine, traces: TraceSet, settings: Settings
) -> tuple[Program, running.FoldedProgram, Results]:
    """Run traces at closed forms; return their program, its classes of equal NPUs, and results of one NPU per class.

    Args:
        machine: The GPUs with their fabric and operator times.
        traces: The traces of one step.
        settings: The settings of the engine.
    """
    program = program_of(machine, traces)
    folded = running.laid_out(machine.graph, program, machine.costs)
    costed = running.costed(folded, machine.costs, machine.collectives)
    results = running.run(machine.graph, folded, costed, machine.costs, settings, NoProgress(), max_rows=0)
    return program, folded, results


def _run(machine: TargetMachine, model: Model, plan: ParallelPlan, framework: rules.Framework) -> StepTime:
    """Simulate a whole step of a plan at closed forms, and return its time."""
    traces = generate(model, plan, framework)
    settings = replace(machine.settings, compute_slowdown=slowdown(machine, framework))
    program, folded, results = run_closed_form(machine, traces, settings)
    shares = step_times(program, traces.traces, traces.trace_of_npu, results)
    size = folded.classes.size
    # equal NPUs are simulated once: a mean over all GPUs weights each example by the size of its class
    share_ps = (shares[folded.classes.example] * size[:, None]).sum(axis=0) / size.sum()
    times = npu_times(
        program, results.npu_node_ptr, results.node_start_ps, results.node_finish_ps, results.finish_time_ps
    )
    columns = {"compute": times.compute_ps, "communication": times.exposed_ps, "idle": times.idle_ps + times.host_ps}
    summed = {
        name: float((column[folded.classes.example] * folded.classes.size).sum()) for name, column in columns.items()
    }
    # what remains of all GPUs' time to the end of the step
    summed["memory"] = results.finish_time_ps * float(folded.classes.size.sum()) - sum(summed.values())
    npu_ps = np.array([summed[name] for name in NPU_TIMES])
    use = EnergyUse(npu_ps, sent_by_ports(machine.graph, program, machine.settings).ports)
    return StepTime(float(results.finish_time_ps), share_ps, use, is_whole=True)


def slowdown(machine: TargetMachine, framework: rules.Framework) -> float:
    """Return the slowdown factor of computation while a collective runs on the same GPU.

    Args:
        machine: The GPUs with their fabric and operator times.
        framework: The software whose overlap and schedules apply.
    """
    times = machine.compute.times
    if times is None:
        return 1.0
    return compute_slowdown(framework, times.gpu, machine.channels, in_a_row=times.pace.in_a_row)

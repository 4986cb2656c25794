"""A step of one plan on one cluster at closed forms, its long steps told from two short ones.

A pipeline in its steady state repeats itself: each further micro-batch adds the same time. So a step of many
micro-batches is worked out from two of `_SHORT` and `_LONGER` rounds of the pipeline, and the line through them; by as
much as the line between them is bent (a third run at `--exact` shows it) the step is off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import topologies
import workload
from nadi.configuration.sections import NetworkSection
from nadi.energy.bill import NPU_TIMES, PortUse
from nadi.insight.analysis.node_times import npu_times
from nadi.insight.analysis.step_times import CATEGORIES, step_times
from nadi.launching.progress import NoProgress
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.likeness import Classes
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.closed_forms.curves import PLANNER_EFFORT
from nadi.simulation.closed_forms.sent_bytes import sent_by_ports
from nadi.simulation.fidelities import fabric_settings as fabric
from nadi.simulation.run import network_settings
from pdes import Results, Settings
from topologies import Graph
from topologies.clusters import Cluster
from workload import CollectiveSettings, ComputeModel, Program
from workload.collectives import defaults_on
from workload.compute import ComputeTimes
from workload.generators.models import Model
from workload.generators.training import ParallelPlan, rules
from workload.generators.training.generator import generate
from workload.generators.training.interference import channels_on, compute_slowdown

_SHORT, _LONGER = 2, 3
"""Micro-batches of the two short steps, times the stages."""


@dataclass(frozen=True)
class TargetMachine:
    """Where plans are tried.

    Attributes:
        graph: the fabric of all GPUs.
        settings: of packets, whose closed forms are taken.
        collectives: how they are done.
        compute: times of operators.
        costs: of the fabric, kept from plan to plan.
        channels: NCCL's channels there, each of which holds an SM while a collective runs.
    """

    graph: Graph
    settings: Settings
    collectives: CollectiveSettings
    compute: ComputeModel
    costs: CollectiveCosts
    channels: int = 0


def site(
    cluster: Cluster,
    gpus: int,
    times: ComputeTimes,
    fabric_keys: Mapping[str, object] | None = None,
    network_keys: Mapping[str, object] | None = None,
) -> TargetMachine:
    """A cluster's GPUs, the first ones.

    Args:
        cluster: by name.
        gpus: how many.
        times: of operators on its GPUs.
        fabric_keys: parameters of its topology in place of its own.
        network_keys: keys of [network] likewise.

    Raises:
        TopologyError: it has no fabric of so many.
    """
    graph = topologies.build(cluster.with_parameters(fabric_keys or {}).topology(gpus))
    section = NetworkSection.model_validate({**cluster.network, **(network_keys or {}), "fidelity": "closed-form"})
    settings = fabric.fitted(graph, network_settings(section, record_flows=False))
    how = CollectiveSettings(defaults_on(graph) | cluster.collectives)
    costs = CollectiveCosts(graph, settings, PLANNER_EFFORT)
    return TargetMachine(graph, settings, how, ComputeModel(times=times), costs, channels_on(graph))


class EnergyUse(NamedTuple):
    """What of a step costs energy.

    Attributes:
        npu_ps: float64[len(NPU_TIMES)], the GPUs' time by what they do, summed over all.
        ports: by sort, with the bytes that they would send.
    """

    npu_ps: NDArray[np.float64]
    ports: Mapping[str, PortUse]


class StepTime(NamedTuple):
    """What a step takes.

    Attributes:
        step_ps: of the slowest GPU.
        share_ps: float64[len(CATEGORIES)], where the time of a GPU went, mean over all.
        use: of GPUs and ports.
        is_whole: the whole step was run; else it stands on the line through two short ones.
    """

    step_ps: float
    share_ps: NDArray[np.float64]
    use: EnergyUse
    is_whole: bool

    def of(self, category: str) -> float:
        """Share of the step, 0 to 1, that a GPU spends so."""
        return float(self.share_ps[CATEGORIES.index(category)] / self.step_ps)


def step_time(
    where: TargetMachine, model: Model, plan: ParallelPlan, framework: rules.Framework, *, exact: bool = False
) -> StepTime:
    """The time of a step.

    Args:
        where: the cluster.
        model: what is trained.
        plan: settled.
        framework: by which.
        exact: run all of it, however long.

    Raises:
        WorkloadError: the plan breaks a rule.
    """
    micro_batches = plan.global_batch // (plan.dp * plan.micro_batch)
    deferring = -(-plan.defer_embedding_wgrad // plan.pp)  # rounds; both runs must have micro-batches beyond these
    short, longer = (_SHORT + deferring) * plan.pp, (_LONGER + deferring) * plan.pp
    if exact or micro_batches <= longer:
        return _run(where, model, plan, framework)
    first = _run(where, model, _with_micro_batches(plan, short), framework)
    second = _run(where, model, _with_micro_batches(plan, longer), framework)
    return _on_the_line(first, second, (micro_batches - longer) / (longer - short))


def _on_the_line(first: StepTime, second: StepTime, rest: float) -> StepTime:
    """A step as far behind the second as `rest` times what lies between the two."""
    ports = {}
    for name, ports_used in second.use.ports.items():
        before = first.use.ports.get(name, ports_used._replace(tx_bytes=0.0)).tx_bytes
        ports[name] = ports_used._replace(tx_bytes=ports_used.tx_bytes + rest * (ports_used.tx_bytes - before))
    return StepTime(
        second.step_ps + rest * (second.step_ps - first.step_ps),
        second.share_ps + rest * (second.share_ps - first.share_ps),
        EnergyUse(second.use.npu_ps + rest * (second.use.npu_ps - first.use.npu_ps), ports),
        is_whole=False,
    )


def _with_micro_batches(plan: ParallelPlan, count: int) -> ParallelPlan:
    return plan.model_copy(update={"global_batch": count * plan.dp * plan.micro_batch})


def _run(where: TargetMachine, model: Model, plan: ParallelPlan, framework: rules.Framework) -> StepTime:
    """A whole step."""
    traces = generate(model, plan, framework)
    program = workload.build_program(
        traces.traces,
        traces.trace_of_npu,
        where.graph.npus,
        {},
        where.compute,
        replace(where.collectives, copied=traces.copied),
        fabric=where.graph,
        example_npu=traces.example_npu,
        families=traces.families,
    )
    folded = running.laid_out(where.graph, program, where.costs)
    costed = running.costed(folded, where.costs, where.collectives)
    settings = replace(where.settings, compute_slowdown=_slowdown(where, framework))
    results = running.run(where.graph, folded, costed, where.costs, settings, NoProgress(), max_rows=0)
    found = step_times(program, traces.traces, traces.trace_of_npu, results)
    size = folded.classes.size
    share_ps = (found[folded.classes.example] * size[:, None]).sum(axis=0) / size.sum()
    npu_ps = _npu_ps(program, results, folded.classes)
    use = EnergyUse(npu_ps, sent_by_ports(where.graph, program, where.settings).ports)
    return StepTime(float(results.finish_time_ps), share_ps, use, is_whole=True)


def _slowdown(where: TargetMachine, framework: rules.Framework) -> float:
    """How many times as long computation takes beside a collective."""
    times = where.compute.times
    if times is None:
        return 1.0
    return compute_slowdown(framework, times.gpu, where.channels, in_a_row=times.pace.in_a_row)


def _npu_ps(program: Program, results: Results, classes: Classes) -> NDArray[np.float64]:
    """float64[len(NPU_TIMES)]: the time of all NPUs by what they do; results have one NPU of each class."""
    times = npu_times(
        program, results.npu_node_ptr, results.node_start_ps, results.node_finish_ps, results.finish_time_ps
    )
    columns = {"compute": times.compute_ps, "communication": times.exposed_ps, "idle": times.idle_ps + times.host_ps}
    summed = {name: float((column[classes.example] * classes.size).sum()) for name, column in columns.items()}
    summed["memory"] = results.finish_time_ps * float(classes.size.sum()) - sum(summed.values())
    return np.array([summed[name] for name in NPU_TIMES])

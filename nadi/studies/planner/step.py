"""Step time of one plan on one cluster: at closed forms, by flows, and with packets for communication.

A pipeline in its steady state is periodic: each further micro-batch adds the same time. So the planner simulates two
steps of `_SHORT` and `_LONGER` rounds of the pipeline and extrapolates linearly to many micro-batches. `exact=True`
simulates the whole step; the difference is the error of the extrapolation. By flows, all communication of the step
takes place at once on the whole fabric: collectives are coupled flows.

Closed forms do not model contention. Simulating a whole step of a thousand GPUs packet by packet takes too long, but a
step repeats the same communications. So for each axis of parallelism, the largest communication of each kind is
simulated at packet level with all groups of all stages at once on the whole fabric; very large buffers are truncated.
The exposed time of the axis is then multiplied by the ratio of packet-level time to closed-form time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import topologies, workload
from nadi.configuration.sections import NetworkSection
from nadi.energy import NPU_TIMES, PortUse
from nadi.et import Block, CollectiveCommType, NodeType, TraceColumns, TraceTable
from nadi.inputs.units import PS_PER_S
from nadi.insight.node_times import npu_times
from nadi.insight.step_times import step_times
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes import Results, Settings, fidelity
from nadi.pdes.fidelity import FLUID, REFERENCE
from nadi.simulation import network_settings as fabric
from nadi.simulation.closed_forms import PLANNER_EFFORT, CollectiveCosts, running, sent_by_ports
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.simulation.schemas import COMMUNICATION_AXES, STEP_CATEGORIES
from nadi.topologies import Graph
from nadi.topologies.clusters import Cluster
from nadi.workload import CollectiveSettings, ComputeModel, Program
from nadi.workload.collectives import defaults_on
from nadi.workload.compute import ComputeTimes
from nadi.workload.generators import training
from nadi.workload.generators.models import Model
from nadi.workload.generators.training.generator import generate
from nadi.workload.generators.training.stage import Stage
from nadi.workload.trace_sets import Families, TraceSet

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

    @cached_property
    def for_rules(self) -> training.rules.TrainingMachine:
        """What of the machine decides keys of plans that users left open."""
        return training.rules.machine_of(self.graph, self.compute.times.gpu if self.compute.times else None)


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
    return TargetMachine(
        graph, settings, collectives, ComputeModel(times=operator_times), costs, training.channels_on(graph)
    )


def on_target(
    machine: TargetMachine, model: Model, plan: training.ParallelPlan, framework: training.rules.Framework
) -> training.ParallelPlan:
    """Return a settled plan with the keys that its user left open and that depend on the machine.

    Args:
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
    """
    return training.rules.on_machine(model, plan, framework, machine.for_rules)


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
    machine: TargetMachine,
    model: Model,
    plan: training.ParallelPlan,
    framework: training.rules.Framework,
    *,
    exact: bool = False,
) -> StepTime:
    """Return a settled plan's step time at closed forms.

    Args:
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
        exact: Whether all micro-batches are simulated; False extrapolates from a few.
    """
    plan = on_target(machine, model, plan, framework)
    shorter = None if exact else shorter_plans(plan)
    if shorter is None:
        return _run(machine, model, plan, framework)
    *two, factor = shorter
    generators: dict[int, Stage] = {}  # both steps have the same passes
    first, second = (_run(machine, model, short, framework, generators) for short in two)
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


def shorter_plans(plan: training.ParallelPlan) -> tuple[training.ParallelPlan, training.ParallelPlan, float] | None:
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


def deferring_rounds(plan: training.ParallelPlan) -> int:
    """Return the rounds whose embedding gradients are deferred; short steps need further rounds after these.

    Args:
        plan: The parallel plan, with all values settled.
    """
    return -(-plan.defer_embedding_wgrad // plan.pp)


def with_micro_batches(plan: training.ParallelPlan, num_micro_batches: int) -> training.ParallelPlan:
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
) -> tuple[Program, running.ClassProgram, Results]:
    """Run traces at closed forms; return their program, its classes of equal NPUs, and results of one NPU per class.

    Args:
        machine: The GPUs with their fabric and operator times.
        traces: The traces of one step.
        settings: The settings of the engine.
    """
    program = program_of(machine, traces)
    class_program = running.laid_out(machine.graph, program, machine.costs)
    costed = running.costed(class_program, machine.costs, machine.collectives)
    results = running.run(machine.graph, class_program, costed, machine.costs, settings, NoProgress(), max_rows=0)
    return program, class_program, results


def _run(
    machine: TargetMachine,
    model: Model,
    plan: training.ParallelPlan,
    framework: training.rules.Framework,
    generators: dict[int, Stage] | None = None,
) -> StepTime:
    """Simulate a whole step of a plan at closed forms, and return its time; generators: see `generate`."""
    traces = generate(model, plan, framework, generators)
    settings = replace(machine.settings, compute_slowdown=slowdown(machine, framework, plan))
    program, class_program, results = run_closed_form(machine, traces, settings)
    shares = step_times(program, traces.traces, traces.trace_of_npu, results)
    size = class_program.classes.size
    # equal NPUs are simulated once: a mean over all GPUs weights each example by the size of its class
    share_ps = (shares[class_program.classes.example] * size[:, None]).sum(axis=0) / size.sum()
    times = npu_times(
        program, results.npu_node_ptr, results.node_start_ps, results.node_finish_ps, results.finish_time_ps
    )
    columns = {"compute": times.compute_ps, "communication": times.exposed_ps, "idle": times.idle_ps + times.host_ps}
    summed = {name: float((column[class_program.classes.example] * size).sum()) for name, column in columns.items()}
    # what remains of all GPUs' time to the end of the step
    summed["memory"] = results.finish_time_ps * float(class_program.classes.size.sum()) - sum(summed.values())
    npu_ps = np.array([summed[name] for name in NPU_TIMES])
    use = EnergyUse(npu_ps, sent_by_ports(machine.graph, program, machine.settings).ports)
    return StepTime(float(results.finish_time_ps), share_ps, use, is_whole=True)


def slowdown(machine: TargetMachine, framework: training.rules.Framework, plan: training.ParallelPlan) -> float:
    """Return the slowdown factor of computation while a collective runs on the same GPU.

    Args:
        machine: The GPUs with their fabric and operator times.
        framework: The software whose overlap and schedules apply.
        plan: The settled parallel plan.
    """
    times = machine.compute.times
    if times is None:
        return 1.0
    return training.compute_slowdown(
        framework,
        times.gpu,
        machine.channels,
        in_a_row=times.pace.in_a_row,
        dispatch_sms=training.held_sms(plan),
        leaves_sms=training.products_leave_sms(plan),
    )


class FlowStepTime(NamedTuple):
    """Step time of a plan with contention."""

    step_ps: float  # step time in ps

    def document(self) -> dict[str, Any]:
        """Return the entries of a plan's row of the document."""
        return {"flows_step_s": self.step_ps / PS_PER_S}


def flow_step_time(
    cluster: Cluster,
    machine: TargetMachine,
    model: Model,
    plan: training.ParallelPlan,
    framework: training.rules.Framework,
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
    plan = on_target(machine, model, plan, framework)
    settings = replace(settings, compute_slowdown=slowdown(machine, framework, plan))

    def step_ps(plan: training.ParallelPlan) -> int:
        program = program_of(machine, generate(model, plan, framework))
        coupled = coupled_collectives(program, machine.costs, machine.collectives)
        return run_program(machine.graph, program, replace(settings, coupled=coupled), NoProgress()).finish_time_ps

    shorter = shorter_plans(plan)
    if shorter is None:
        return FlowStepTime(step_ps(plan))
    *two, factor = shorter
    first_ps, second_ps = (step_ps(short) for short in two)
    return FlowStepTime(second_ps + factor * (second_ps - first_ps))


MAX_PACKET_HOPS = 8e6  # maximum packet-hops of one simulated communication: one or two seconds of wall time
MIN_SHARE = 0.002  # minimum exposed share of the step, 0 to 1, from which an axis is simulated
_HOPS = 4  # typical number of links of a path; a collective sends its buffer about twice
_MIN_BUFFER_BYTES = 64 << 10  # buffers are not truncated below this size, so that they stay bandwidth-bound
_PACKET_BYTES = 4096
_MESSAGES = -1  # kind of point-to-point messages, beside the values of CollectiveCommType


class PacketStepTime(NamedTuple):
    """Step time corrected by packet-level simulation."""

    step_ps: float  # closed-form step time in ps with the exposed time of each simulated axis multiplied by its ratio
    ratios: dict[str, float]  # packet-level time over closed-form time by axis

    def document(self) -> dict[str, Any]:
        """Return the entries of a plan's row of the document."""
        return {"packets_step_s": self.step_ps / PS_PER_S, "packets_over_closed_form": self.ratios}


def packet_step_time(
    cluster: Cluster,
    machine: TargetMachine,
    model: Model,
    plan: training.ParallelPlan,
    framework: training.rules.Framework,
    step: StepTime,
    progress: Progress | NoProgress,
) -> PacketStepTime:
    """Simulate a settled plan's communications at packet level; `step` is its step time at closed forms.

    Args:
        cluster: The cluster with its network settings.
        machine: The GPUs with their fabric and operator times.
        model: The architecture of the model.
        plan: The parallel plan, with all values settled.
        framework: The software whose overlap and schedules apply.
        step: The step time of the plan at closed forms.
        progress: The display of the run.
    """
    section = NetworkSection.model_validate({**cluster.network, "fidelity": REFERENCE})
    settings = fabric.fitted(machine.graph, network_settings(section, record_nodes=False, record_flows=False))
    # a micro-batch per stage is enough: the largest communication of each kind is in it
    plan = on_target(machine, model, plan, framework)
    short = plan.model_copy(update={"global_batch": plan.dp * plan.micro_batch * plan.pp})
    traces = generate(model, short, framework)
    ratios: dict[str, float] = {}
    step_ps = step.step_ps
    exposed = [axis for axis in COMMUNICATION_AXES if step.of(axis) >= MIN_SHARE]
    for axis in exposed:
        if axis in traces.families and _within_hosts(machine, traces.families[axis]):
            continue
        for name, part in _parts(axis, traces, machine.graph.npus):
            progress.say(f"{plan}: {name} of all groups at packet level")
            program, _, closed_form = run_closed_form(machine, part, machine.settings)
            packets = run_program(machine.graph, program, settings, progress)
            ratio = packets.finish_time_ps / max(closed_form.finish_time_ps, 1)
            if ratio > ratios.get(axis, 0.0):
                ratios[axis] = ratio
        if axis in ratios:
            step_ps += (ratios[axis] - 1) * float(step.share_ps[STEP_CATEGORIES.index(axis)])
    return PacketStepTime(step_ps, ratios)


def _within_hosts(machine: TargetMachine, gpu_groups: Sequence[tuple[int, ...]]) -> bool:
    """Return whether every group of GPUs stays within one host."""
    host = machine.graph.host
    return all(len(np.unique(host[list(group)])) == 1 for group in gpu_groups)


def _parts(axis: str, traces: TraceSet, num_npus: int) -> Iterator[tuple[str, TraceSet]]:
    """Yield the name and the traces of each kind of communication of an axis as "tp"; the traces hold nothing else."""
    rows_by_kind = [_of_axis(trace, axis) for trace in traces.traces]
    # with 1,024 GPUs: 8e6 / (2 * 4 * 1,024) packets, some 4 MB per member
    max_bytes = max(int(MAX_PACKET_HOPS / (2 * _HOPS * num_npus) * _PACKET_BYTES), _MIN_BUFFER_BYTES)
    for kind in sorted({kind for rows in rows_by_kind for kind in rows}):
        of_all = (traces.traces, traces.example_npu.tolist(), rows_by_kind)
        tables = [
            _table(trace, npu, rows.get(kind, []), max_bytes, traces.families)
            for trace, npu, rows in zip(*of_all, strict=True)
        ]
        name = "messages" if kind < 0 else CollectiveCommType(kind).name.lower().replace("_", "-")
        yield f"{axis} {name}", TraceSet(tables, traces.trace_of_npu, traces.example_npu, traces.families)


def _of_axis(trace: TraceTable, axis: str) -> dict[int, list[int]]:
    """Return the rows that represent an axis, by kind: the largest collective, and the first message per peer."""
    rows: dict[int, list[int]] = {}
    communications = np.flatnonzero(
        np.isin(trace.type, (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE, NodeType.COMM_COLL_NODE))
    )
    peers: set[tuple[int, int]] = set()
    for row in communications.tolist():
        if trace.names[row].rpartition("/")[2].partition(":")[0] != axis:
            continue
        if trace.type[row] == NodeType.COMM_COLL_NODE:
            kept = rows.setdefault(int(trace.comm_type[row]), [row])
            if trace.comm_size[row] > trace.comm_size[kept[0]]:
                kept[0] = row
            continue
        other = int(trace.comm_dst[row] if trace.type[row] == NodeType.COMM_SEND_NODE else trace.comm_src[row])
        peer = int(trace.type[row]), other
        if peer not in peers:
            peers.add(peer)
            rows.setdefault(_MESSAGES, []).append(row)
    return rows


def _table(trace: TraceTable, npu: int, rows: Sequence[int], max_bytes: int, families: Families) -> TraceTable:
    """Return a trace, with the peers of `npu`, of some rows' communications of at most max_bytes each, nothing else."""
    block = Block()
    for row in rows:
        size, name = min(int(trace.comm_size[row]), max_bytes), trace.names[row]
        if trace.type[row] == NodeType.COMM_COLL_NODE:
            group, kind = trace.group_names[trace.group[row]], CollectiveCommType(int(trace.comm_type[row]))
            if kind == CollectiveCommType.ALL_GATHER:  # the size of an all-gather is the contribution of each member
                size = min(size, max(1, max_bytes // max(map(len, families[group]))))
            block.coll(name, kind, size, group=group)
        elif trace.type[row] == NodeType.COMM_SEND_NODE:
            block.send(name, size, peer=int(trace.comm_dst[row]))
        else:
            block.recv(name, size, peer=int(trace.comm_src[row]))
    columns = TraceColumns(npu, trace.path)
    columns.stamp(block)
    return columns.table()

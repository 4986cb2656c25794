"""Packet-level check of the best plans: how much longer communication takes when all groups of an axis run at once.

Closed forms do not model contention. Simulating a whole step of a thousand GPUs packet by packet takes too long, but a
step repeats the same communications. So for each axis of parallelism, the largest communication of each kind is
simulated at packet level with all groups of all stages at once on the whole fabric; very large buffers are truncated.
The exposed time of the axis is then multiplied by the ratio of packet-level time to closed-form time.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from nadi.configuration.sections import NetworkSection
from nadi.et import Block, CollectiveCommType, NodeType, TraceColumns, TraceTable
from nadi.inputs.units import PS_PER_S
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes.fidelity import REFERENCE
from nadi.simulation.fidelities import fabric_settings as fabric
from nadi.simulation.fidelities import network_settings
from nadi.simulation.run import run_program
from nadi.simulation.schemas import COMMUNICATION_AXES, STEP_CATEGORIES
from nadi.studies.planner.step import StepTime, TargetMachine, run_closed_form
from nadi.topologies.clusters import Cluster
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import ParallelPlan, rules
from nadi.workload.generators.training.generator import generate
from nadi.workload.trace_sets import Families, TraceSet

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


def confirm(
    cluster: Cluster,
    machine: TargetMachine,
    model: Model,
    plan: ParallelPlan,
    framework: rules.Framework,
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

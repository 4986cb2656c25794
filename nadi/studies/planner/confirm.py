"""The best plans once more, by packets: what all groups of an axis take when they communicate at once.

Closed forms know no contention. A whole step of a thousand GPUs is more packets than anybody waits for, but it does the
same communications over and over: so of each axis of parallelism the largest one of each kind is sent by packets, all
groups of all stages at once, on the whole fabric; buffers that would take too long are cut down. What packets take over
the closed form of the same is how much longer that axis' exposed time becomes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

import workload
from et import CollectiveCommType, NodeType, TraceTable
from et.blocks import Block, TraceColumns
from nadi.configuration.sections import NetworkSection
from nadi.insight.analysis.step_times import AXES, CATEGORIES
from nadi.launching.progress import NoProgress, Progress
from nadi.simulation.closed_forms import running
from nadi.simulation.fidelities import fabric_settings as fabric
from nadi.simulation.run import network_settings, run_program
from nadi.studies.planner.step import StepTime, TargetMachine
from pdes import Settings
from topologies.clusters import Cluster
from workload.generators.models import Model
from workload.generators.training import ParallelPlan, rules
from workload.generators.training.generator import generate
from workload.trace_sets.trace_set import Families, TraceSet

MOST_PACKET_HOPS = 8e6
"""Of one communication: a second or two."""
LEAST_SHARE = 0.002
"""Of a step, that an axis is exposed."""
_HOPS = 4
"""Links of a usual path; a collective sends its buffer about twice."""
_LEAST_BYTES = 64 << 10
_PACKET_BYTES = 4096
_MESSAGES = -1
"""In place of a kind of collective."""


class PacketStepTime(NamedTuple):
    """A step with the time that packets take.

    Attributes:
        step_ps: of the closed forms, each axis' exposed time longer by its ratio.
        ratios: packets over closed form, by axis.
    """

    step_ps: float
    ratios: dict[str, float]


def confirm(
    cluster: Cluster,
    where: TargetMachine,
    model: Model,
    plan: ParallelPlan,
    framework: rules.Framework,
    step: StepTime,
    progress: Progress | NoProgress,
) -> PacketStepTime:
    """Send a plan's communications by packets.

    Args:
        cluster: whose network settings are taken.
        where: its fabric and closed forms.
        model: what is trained.
        plan: settled.
        framework: by which.
        step: what closed forms say of it.
        progress: told which axis is under way.

    Raises:
        pdes.RunError: a run failed.
    """
    section = NetworkSection.model_validate({**cluster.network, "fidelity": "packet"})
    settings = fabric.fitted(where.graph, network_settings(section, record_nodes=False, record_flows=False))
    short = plan.model_copy(update={"global_batch": plan.dp * plan.micro_batch * plan.pp})
    traces = generate(model, short, framework)
    ratios: dict[str, float] = {}
    step_ps = step.step_ps
    exposed = [axis for axis in AXES if step.of(axis) >= LEAST_SHARE]
    for axis in exposed:
        if axis in traces.families and _within_hosts(where, traces.families[axis]):
            continue
        for name, part in _parts(axis, traces, where.graph.npus):
            progress.say(f"{plan}: {name} of all groups by packets")
            ratio = _ratio(where, part, settings, progress)
            if ratio > ratios.get(axis, 0.0):
                ratios[axis] = ratio
        if axis in ratios:
            step_ps += (ratios[axis] - 1) * float(step.share_ps[CATEGORIES.index(axis)])
    return PacketStepTime(step_ps, ratios)


def _within_hosts(where: TargetMachine, groups: Sequence[tuple[int, ...]]) -> bool:
    """Whether no group leaves its host."""
    host = where.graph.host
    return all(len(np.unique(host[list(group)])) == 1 for group in groups)


def _ratio(where: TargetMachine, part: TraceSet, settings: Settings, progress: Progress | NoProgress) -> float:
    """Time of packets over that of closed forms, of one communication of everybody."""
    graph = where.graph
    program = workload.build_program(
        part.traces,
        part.trace_of_npu,
        graph.npus,
        {},
        where.compute,
        where.collectives,
        fabric=graph,
        example_npu=part.example_npu,
        families=part.families,
    )
    folded = running.laid_out(graph, program, where.costs)
    costed = running.costed(folded, where.costs, where.collectives)
    alone = running.run(graph, folded, costed, where.costs, where.settings, NoProgress())
    together = run_program(graph, program, settings, progress)
    return together.finish_time_ps / max(alone.finish_time_ps, 1)


def _parts(axis: str, traces: TraceSet, npus: int) -> Iterator[tuple[str, TraceSet]]:
    """Each kind of communication of an axis as traces of nothing else, and its name."""
    found = [_of_axis(trace, axis) for trace in traces.traces]
    most_bytes = max(int(MOST_PACKET_HOPS / (2 * _HOPS * npus) * _PACKET_BYTES), _LEAST_BYTES)
    for kind in sorted({kind for rows in found for kind in rows}):
        of_all = (traces.traces, traces.example_npu.tolist(), found)
        tables = [
            _table(trace, npu, rows.get(kind, []), most_bytes, traces.families)
            for trace, npu, rows in zip(*of_all, strict=True)
        ]
        name = "messages" if kind < 0 else CollectiveCommType(kind).name.lower().replace("_", "-")
        yield f"{axis} {name}", TraceSet(tables, traces.trace_of_npu, traces.example_npu, traces.families)


def _of_axis(trace: TraceTable, axis: str) -> dict[int, list[int]]:
    """Rows that stand for an axis' communications by kind: the largest collective, the first message of each peer."""
    rows: dict[int, list[int]] = {}
    talks = np.flatnonzero(
        np.isin(trace.type, (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE, NodeType.COMM_COLL_NODE))
    )
    peers: set[tuple[int, int]] = set()
    for row in talks.tolist():
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


def _table(trace: TraceTable, npu: int, rows: Sequence[int], most_bytes: int, families: Families) -> TraceTable:
    """A trace of some communications only, none after another; npu: whose numbers its peers are."""
    block = Block()
    for row in rows:
        size, name = min(int(trace.comm_size[row]), most_bytes), trace.names[row]
        if trace.type[row] == NodeType.COMM_COLL_NODE:
            group, kind = trace.group_names[trace.group[row]], CollectiveCommType(int(trace.comm_type[row]))
            if kind == CollectiveCommType.ALL_GATHER:  # whose size is what each member gives
                size = min(size, max(1, most_bytes // max(map(len, families[group]))))
            block.coll(name, kind, size, group=group)
        elif trace.type[row] == NodeType.COMM_SEND_NODE:
            block.send(name, size, peer=int(trace.comm_dst[row]))
        else:
            block.recv(name, size, peer=int(trace.comm_src[row]))
    columns = TraceColumns(npu, trace.path)
    columns.stamp(block)
    return columns.table()

"""Counts of the trace nodes of a run, and what they say before it begins."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nadi.configuration.conditions import DurationSources
from nadi.simulation.assembly.reading import LoadedWorkload
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY


class WorkCounts(NamedTuple):
    """Counts of the trace nodes that the NPUs of a rank, or of all ranks, run."""

    nodes: int  # number of trace nodes
    timed: int  # number of compute and memory nodes
    collectives: int  # number of collective nodes
    remote: int  # number of nodes with a remote tensor in a run whose [memory] has no remote memory
    remote_npus: int  # number of NPUs that run such nodes
    times: DurationSources  # sources of the durations of compute and memory nodes
    first_remote: str  # file and node of the first such node; "" if there are no such nodes


def count(work: LoadedWorkload, *, has_remote_memory: bool, has_gpu: bool, model: str) -> WorkCounts:
    """Count the trace nodes of this rank's NPUs.

    Args:
        work: The workload that was read.
        has_remote_memory: Whether the run has [memory] remote.
        has_gpu: Whether the run has [compute] gpu.
        model: Value of [compute] model.
    """
    program = work.program
    npus = np.bincount(program.trace_of_npu[program.trace_of_npu >= 0], minlength=len(program.trace_ptr) - 1)
    # nodes of a trace count once for each NPU that has it
    users = np.repeat(npus, np.diff(program.trace_ptr))
    kind = program.node_kind
    remote, remote_npus, first = 0, 0, ""
    computed = np.zeros(3, np.int64)  # nodes with computed durations, by source; some may be of other types
    for number, table in enumerate(work.traces):
        running = int(np.count_nonzero(work.trace_of_npu == number))
        if not running:
            continue
        rows = np.flatnonzero(table.tensor_loc)
        if len(rows) and not has_remote_memory:
            first = first or f"{table.path}: node {table.node_id[rows[0]]}"
            remote += running * len(rows)
            remote_npus += running
        is_open = (table.duration_micros == 0) | (model == "roofline")
        by_operators = is_open & (table.operators > 0) & has_gpu
        rest = is_open & ~by_operators
        masks = by_operators, rest & (table.num_ops > 0), rest & (table.tensor_size > 0)
        computed += [np.count_nonzero(mask) for mask in masks]
    return WorkCounts(
        nodes=int(users.sum()),
        timed=int(users[(kind == COMPUTE) | (kind == MEMORY)].sum()),
        collectives=int(users[kind == COLLECTIVE].sum()),
        remote=remote,
        remote_npus=remote_npus,
        times=DurationSources(*computed.tolist()),
        first_remote=first,
    )


def total(counts_of_ranks: Sequence[WorkCounts]) -> WorkCounts:
    """Return the counts of all ranks together.

    Args:
        counts_of_ranks: Counts of each rank.
    """
    nodes, timed, collectives, remote, remote_npus, times, first_remote = zip(*counts_of_ranks, strict=True)
    sources = DurationSources(*map(sum, zip(*times, strict=True)))
    first = next(filter(None, first_remote), "")
    return WorkCounts(sum(nodes), sum(timed), sum(collectives), sum(remote), sum(remote_npus), sources, first)


def remote_tensors(counts: WorkCounts) -> str:
    """Return a warning if tensors are in remote memories that the run does not have, else "".

    Args:
        counts: Counts of trace nodes.
    """
    if not counts.remote:
        return ""
    return (
        f"{counts.remote:,} trace nodes on {counts.remote_npus:,} NPUs have a tensor that is not in local memory "
        f"(tensor_loc other than 0, first in {counts.first_remote}); without [memory] remote they are treated as "
        "local"
    )


def why_no_time(counts: WorkCounts, work: LoadedWorkload, model: str, traces: str) -> str:
    """Return why a run takes no time, should it take none.

    Args:
        counts: Counts of trace nodes.
        work: The workload that was read.
        model: Value of [compute] model.
        traces: Path of [workload] traces, for the text.
    """
    if counts.nodes == 0:
        files = "the trace is" if len(work.traces) == 1 else f"all {len(work.traces)} traces are"
        return f"no NPU has anything to do: {files} without nodes ({work.traces[0].path if work.traces else traces})"
    reasons = []
    if counts.timed and model == "trace":
        reasons.append(f'{counts.timed:,} compute and memory nodes have no duration, and [compute] model is "trace"')
    elif counts.timed:
        reasons.append(
            f"{counts.timed:,} compute and memory nodes have neither a duration nor, for a roofline, num_ops or "
            "tensor_size"
        )
    if counts.collectives:
        reasons.append(f"{counts.collectives:,} collectives have no other member to send to")
    others = counts.nodes - counts.timed - counts.collectives
    if others:
        reasons.append(f"{others:,} nodes are of types that take no time")
    return f"the run takes no time: {'; '.join(reasons)}"

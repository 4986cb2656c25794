"""The lines that ASTRA-sim prints at the end of a simulation, from a run here. Cycles are nanoseconds, cut.

Source: astra-sim/astra-sim, Workload::report of workload/Workload.cc and workload/Statistics.cc.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.errors import OutputError
from nadi.et import NodeType, TraceTable
from nadi.inputs.arrays import Int64, Mask
from nadi.inputs.units import PS_PER_NS
from nadi.simulation.run_plan import FinishedRun, Roofline
from nadi.terminal import say

_LOG = "log.log"  # name of ASTRA-sim's log in its logging folder
_COMMUNICATION = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
_MEMORY = (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)


class _Times(NamedTuple):
    """Times of the nodes of one NPU's trace, in file order, in nanoseconds."""

    start_ns: Int64
    finish_ns: Int64

    def sum_ns(self, nodes: Mask) -> int:
        """Return the sum of the durations of some nodes."""
        return int((self.finish_ns - self.start_ns)[nodes].sum())

    def busy_ns(self, nodes: Mask) -> int:
        """Return the time during which at least one of some nodes ran."""
        order = np.argsort(self.start_ns[nodes], kind="stable")
        start, finish = self.start_ns[nodes][order], self.finish_ns[nodes][order]
        # The length of the union: a node adds only what lies behind the end of all before it. For 0-5, 2-4 and 4-9 that
        # is 5 + 0 + 4 = 9.
        until = np.maximum.accumulate(finish)
        begin = np.maximum(start, np.concatenate([start[:1], until[:-1]]))
        return int(np.maximum(until - begin, 0).sum())


def print_lines(run: FinishedRun, log_folder: Path | None, *, err: bool) -> None:
    """Print the lines of a finished run, and write them to log.log in a folder if there is one.

    Args:
        run: The finished run.
        log_folder: The folder of log.log, made if it is missing; None writes no file.
        err: Whether the lines go to standard error.
    """
    printed = []
    for line in lines(run):
        say(line, err=err)
        printed.append(line)
    if log_folder is not None:
        try:
            log_folder.mkdir(parents=True, exist_ok=True)
            inputs.write_whole(log_folder / _LOG, "".join(f"{line}\n" for line in printed))
        except OSError as error:
            raise OutputError(f"{log_folder}: {error.strerror or error}; expected a folder for {_LOG}") from None


def lines(run: FinishedRun) -> Iterator[str]:
    """Return the lines of each NPU with a trace, as ASTRA-sim's loggers "workload" and "statistics" print them."""
    folded = run.results.folded
    for npu in range(run.graph.npus):
        # of NPUs with equal work one was simulated; the others have its times
        trace, shown = int(run.trace_of_npu[npu]), npu if folded is None else int(folded.like[npu])
        rows = slice(*run.results.npu_node_ptr[shown : shown + 2].tolist())
        if trace >= 0 and rows.stop > rows.start:
            times = _Times(run.results.node_start_ps[rows] // PS_PER_NS, run.results.node_finish_ps[rows] // PS_PER_NS)
            yield from _of_npu(run, npu, run.traces[trace], times)


def _of_npu(run: FinishedRun, npu: int, table: TraceTable, times: _Times) -> Iterator[str]:
    """Return the lines of one NPU."""
    is_compute = table.type == NodeType.COMP_NODE
    on_gpu, on_cpu = is_compute & ~table.is_cpu_op, is_compute & table.is_cpu_op
    communicates, remembers = np.isin(table.type, _COMMUNICATION), np.isin(table.type, _MEMORY)
    wall_ns = int(times.finish_ns.max(initial=0))
    exposed_ns = wall_ns - times.sum_ns(on_gpu)
    yield f"[workload] sys[{npu}] finished, {wall_ns} cycles, exposed communication {exposed_ns} cycles."
    yield f"[statistics] sys[{npu}], Wall time: {wall_ns}"
    kinds = {"CPU": on_cpu, "GPU": on_gpu, "Comm": communicates, "Remote mem": remembers}
    busy_ns = {kind: times.busy_ns(nodes) for kind, nodes in kinds.items() if nodes.any()}
    for kind, time_ns in busy_ns.items():
        yield f"[statistics] sys[{npu}], {kind} time: {time_ns}"
    overlap_ns = busy_ns["GPU"] + busy_ns["Comm"] - wall_ns if {"GPU", "Comm"} <= busy_ns.keys() else 0
    yield f"[statistics] sys[{npu}], Total compute-communication overlap: {overlap_ns}"
    if run.roofline is not None:
        yield from _roofline(run.roofline, npu, table, times, is_compute)


def _roofline(roofline: Roofline, npu: int, table: TraceTable, times: _Times, is_compute: Mask) -> Iterator[str]:
    """Return the lines about the use of compute and memory: means over compute nodes, weighted by their durations."""
    peak, bandwidth = roofline
    modelled = is_compute & ~table.is_cpu_op & (table.tensor_size > 0)
    duration = (times.finish_ns - times.start_ns).astype(np.float64)
    total = duration[is_compute].sum() + 1  # ASTRA-sim adds 1 so that it never divides by 0
    intensity = table.num_ops[modelled] / table.tensor_size[modelled]
    perf = np.minimum(bandwidth * intensity, peak)

    def mean(values: NDArray[np.floating]) -> float:
        return float((values * duration[modelled]).sum() / total)

    with np.errstate(divide="ignore", invalid="ignore"):
        memory = np.where(intensity > 0, perf / intensity / bandwidth, 0.0)
    yield f"[statistics] sys[{npu}], Compute bound percentage: {mean((perf >= peak) * 1.0) * 100:.3f}%"
    yield f"[statistics] sys[{npu}], Average compute utilization: {mean(perf / peak) * 100:.3f}%"
    yield f"[statistics] sys[{npu}], Average memory utilization: {mean(memory) * 100:.3f}%"
    yield f"[statistics] sys[{npu}], Average operation intensity: {mean(intensity):.3f}"

"""ASTRA-sim 2: its options and files as the sections of a run file, and the lines that it prints at the end of a run.

Sources of the meanings: astra-sim/astra-sim (system/Sys.cc, system/astraccl, workload/Workload.cc,
workload/Statistics.cc), astra-sim/astra-network-analytical, astra-sim/astra-network-ns3 (scratch/common.h) and
astra-sim/astra-memory-analytical. The lines are those of Workload::report; their cycles are nanoseconds, cut.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.configuration.run_file import put_over
from nadi.errors import ConfigError, OutputError
from nadi.et import NodeType, TraceTable
from nadi.importers import FileSections, warning
from nadi.importers.astra_sim import files
from nadi.inputs.arrays import Int64, Mask
from nadi.inputs.limits import MAX_NPUS
from nadi.inputs.units import KIB, PS_PER_NS
from nadi.simulation.run import FinishedRun, Roofline
from nadi.terminal import say

_CONTROL_BYTES = 8 * KIB  # size of a rendezvous message (system/Rendezvous*Data.cc)
_LOG = "log.log"  # name of ASTRA-sim's log in its logging folder
_COMMUNICATION = (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)
_MEMORY = (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)


class Options(NamedTuple):
    """Options of ASTRA-sim's command line that matter here."""

    workload: str  # prefix of the traces
    system: Path
    network: Path
    remote_memory: Path | None = None
    groups: str = "empty"  # path of the group file; none if it contains "empty"
    logical_topology: Path | None = None  # sizes of the logical dimensions, with ns-3
    queues_per_dim: int = 1
    injection_scale: float = 1.0  # factor of the endpoint delay
    rendezvous: bool = False
    congestion_aware: bool | None = None  # analytical back end; None = by the number of dimensions
    htsim: tuple[str, ...] = ()  # arguments of --htsim_opts, with htsim; empty for other back ends
    unused: tuple[str, ...] = ()  # given options that have no effect


def translated(options: Options) -> tuple[dict[str, Any], str]:
    """Return the sections of the run file that the options describe, and a warning, "" if there is none.

    Raises ConfigError, WorkloadError or TraceError: a file is wrong.
    """
    if options.htsim:
        network, dims = files.read_htsim_network(options.network, options.htsim)
    elif options.logical_topology is not None or files.is_ns3(options.network):
        network, dims = files.read_ns3_network(options.network, options.logical_topology)
    else:
        network, dims = files.read_analytical(options.network, congestion_aware=options.congestion_aware)
    unused = list(options.unused)
    if options.congestion_aware is not None and "congestion_aware" not in network.sections["network"]:
        unused.append("--congestion-aware" if options.congestion_aware else "--congestion-unaware")
    if options.rendezvous and "fidelity" in network.sections["network"]:
        unused.append("--rendezvous-protocol (needs --set network.fidelity=packet)")
    npus = math.prod(dims)
    if npus > MAX_NPUS:
        raise ConfigError(f"{options.network}: {npus:.6g} NPUs; expected at most {MAX_NPUS}")
    groups = files.read_groups_of(options.groups)
    system = files.read_system(
        options.system,
        dims,
        injection_scale=options.injection_scale,
        queues_per_dim=options.queues_per_dim,
        has_groups=bool(groups.sections),
    )
    # with rendezvous, every message is announced and answered before its data moves
    rendezvous = {"system": {"rendezvous": 1, "rendezvous_control": _CONTROL_BYTES}} if options.rendezvous else {}
    parts = [
        (str(options.network), network),
        (str(options.system), system),
        (options.workload, files.read_workload(options.workload, npus)),
        (options.groups, groups),
        ("options", FileSections(rendezvous, tuple(unused))),
    ]
    if options.remote_memory is not None:
        parts.append((str(options.remote_memory), files.read_memory(options.remote_memory, npus)))
    sections: Mapping[str, Any] = functools.reduce(put_over, (part.sections for _, part in parts), {})
    return dict(sections), warning(parts)


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
    kept_rows = run.results.kept_rows
    for npu in range(run.graph.npus):
        # of NPUs with equal work one was simulated; the others have its times
        trace, shown = int(run.trace_of_npu[npu]), npu if kept_rows is None else int(kept_rows.like[npu])
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

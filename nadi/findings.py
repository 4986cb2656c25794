"""What a run shows: the analysis of a Simulation, with names, algorithms and closed forms beside the times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nadi.analysis import Collectives, NpuTimes, bandwidths_Bps, find_collectives, npu_times, utilisation
from nadi.closed_form import idle_ps
from nadi.simulate import Simulation
from workload import KINDS
from workload.kinds import KIND_OF_COMM_TYPE

Float64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Findings:
    """Analysis of a run with c collectives.

    Attributes:
        npu_times: where each NPU's time went.
        collectives: c of them, kinds filled in.
        group_names: c names as the traces have them, "" = all NPUs.
        algorithms: c names.
        closed_form_ps: float64[c], on an idle network.
        algorithm_Bps: float64[c], size over time.
        bus_Bps: float64[c], that times the factor of nccl-tests.
        utilisation: float64[links], share of the run in which a link was sending.
    """

    npu_times: NpuTimes
    collectives: Collectives
    group_names: list[str]
    algorithms: list[str]
    closed_form_ps: Float64
    algorithm_Bps: Float64  # noqa: N815 - bytes, not bits
    bus_Bps: Float64  # noqa: N815 - bytes, not bits
    utilisation: Float64

    @property
    def ratio(self) -> Float64:
        """float64[c]: time over closed form; NaN where that is 0."""
        time_ps = self.collectives.time_ps
        ratio = np.full(len(time_ps), np.nan)
        np.divide(time_ps, self.closed_form_ps, out=ratio, where=self.closed_form_ps > 0)
        return ratio


def find(simulation: Simulation) -> Findings:
    """Analyse a run."""
    results, program = simulation.results, simulation.program
    times = results.npu_node_ptr, results.node_start_ps, results.node_finish_ps
    found = find_collectives(program, *times)
    kind, names = _kinds_and_names(simulation, found)
    found = found._replace(kind=kind)
    algorithms = [simulation.collectives.algorithm_of(KINDS[k]) for k in kind.tolist()]
    sizes = zip(kind.tolist(), found.members.tolist(), found.size_bytes.tolist(), found.time_ps.tolist(), strict=True)
    bandwidths = np.array([bandwidths_Bps(*row) for row in sizes]).reshape(-1, 2)
    return Findings(
        npu_times=npu_times(program, *times, results.finish_time_ps),
        collectives=found,
        group_names=names,
        algorithms=algorithms,
        closed_form_ps=_closed_forms(simulation, found),
        algorithm_Bps=bandwidths[:, 0],
        bus_Bps=bandwidths[:, 1],
        utilisation=utilisation(simulation.graph, results.links["tx_bytes"], results.finish_time_ps),
    )


def _kinds_and_names(simulation: Simulation, found: Collectives) -> tuple[NDArray[np.int8], list[str]]:
    """Kind and group name of each collective, from the trace of one member."""
    kind = np.empty(len(found.group), np.int8)
    names = []
    for i, (npu, row) in enumerate(zip(found.npu.tolist(), found.row.tolist(), strict=True)):
        trace = simulation.traces[simulation.trace_of_npu[npu]]
        kind[i] = KIND_OF_COMM_TYPE[trace.comm_type[row]]
        names.append(trace.group_names[trace.group[row]])
    return kind, names


def _closed_forms(simulation: Simulation, found: Collectives) -> Float64:
    """Each distinct (group, kind, size) once."""
    program = simulation.program
    known: dict[tuple[int, int, int], float] = {}
    closed_form_ps = np.zeros(len(found.group))
    keys = zip(found.group.tolist(), found.kind.tolist(), found.size_bytes.tolist(), strict=True)
    for i, key in enumerate(keys):
        if key not in known:
            group, kind, size_bytes = key
            members = program.group_member[program.group_ptr[group] : program.group_ptr[group + 1]]
            known[key] = idle_ps(
                simulation.graph,
                program,
                simulation.settings,
                kind=KINDS[kind],
                algorithm=simulation.collectives.algorithm_of(KINDS[kind]),
                schedule=int(found.schedule[i]),
                members=members.astype(np.int64),
                size_bytes=size_bytes,
            )
        closed_form_ps[i] = known[key]
    return closed_form_ps

"""A run that is decided, and a run that is over; `resolving` makes the first, `run` the second."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.configuration.effects import WithoutEffect
from nadi.configuration.input_files import InputFiles
from nadi.configuration.run_config import RunConfig, Training
from nadi.et import TraceTable
from nadi.launching.workers import Workers
from nadi.simulation.closed_forms.advancing.folded_program import FoldedProgram
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.wiring.reading import JobWork, OperatorSources
from nadi.simulation.wiring.resource_checks import Estimate
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program


class Roofline(NamedTuple):
    """Rates of a GPU that bound all computation."""

    peak_flops: float  # floating-point operations per second; 0 = not set
    bandwidth_Bps: float  # noqa: N815 - of the memory, in bytes per second; 0 = not set


@dataclass(frozen=True, eq=False, kw_only=True)
class RunPlan:
    """All that is decided about a run before it begins, and this rank's part of its inputs."""

    config: RunConfig  # settled values of the run file, which are only to be printed
    graph: Graph  # fabric of the run
    traces: list[TraceTable]  # distinct trace files
    trace_of_npu: NDArray[np.int32]  # int32[npus], trace of each NPU, -1 = none
    program: Program  # Program of the NPUs
    settings: pdes.Settings  # settings of the packet network, with faults, reuse, ticks and records
    collectives: CollectiveSettings  # algorithms of collectives
    operators: OperatorSources  # sources of the times of operators
    workers: Workers  # ranks and workers that run it
    owner: NDArray[np.int32] | None  # int32[nodes], logical process of each node; None = there is one
    expected: Estimate | None  # work of all ranks; None at closed forms
    # costs and classes of NPUs of a run at closed forms; None on other ranks than the first, and for other runs
    closed_form: tuple[CollectiveCosts, FoldedProgram] | None
    files: Sequence[InputFiles]  # user files that the run reads, as they are before it
    memories: Sequence[int]  # NPUs that are remote memories
    jobs: Sequence[JobWork]  # work of each of [[jobs]], copy by copy
    training: Training | None  # model and plan that the run trains; None = neither is known, or there are [[jobs]]
    roofline: Roofline | None  # rates that bound computation in a run by rooflines
    flow_names: Sequence[str]  # groups whose messages are flows in a run of packets
    keeps_nodes: bool  # whether results have a row per trace node
    checkpoint_s: float  # wall time between two checkpoints in seconds, 0 = none
    identity: Mapping[str, Any]  # what must be equal where a run continues from a checkpoint; {} = none is written
    note: str  # that more workers will not pay, which progress shows; "" = nothing
    remarks: Sequence[str]  # sentences about a model's run, which are printed before it begins
    warning: str  # sentence about keys without effect, which is printed before the run begins; "" = none
    warnings: Sequence[str]  # sentences about inputs, for the results
    without_effect: WithoutEffect  # keys and faults that change nothing, as far as they are known before the run
    if_no_time: str  # why the run takes no time, if it takes none
    without_faults: Callable[[], "RunPlan"] | None  # plan of the same run without its faults, if results compare it
    alone: Sequence[Callable[[], "RunPlan"]]  # plan of each job alone on the fabric, if results compare them


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedRun(RunPlan):
    """A finished run with its plan and results."""

    results: pdes.Results  # times, counters, flows and links
    # schedule and size of the collectives that a closed-form run computes by formula; it plays the others
    formulas: frozenset[tuple[int, int]] = frozenset()
    alone_ps: tuple[int, ...] = ()  # time in picoseconds of each job alone on the fabric; () = not simulated
    without_faults_ps: int = -1  # end of the same run without faults, in picoseconds; -1 = not simulated

    def peak_rss_bytes(self) -> int:
        """Return the peak resident memory in bytes of this rank and of the processes that it forked."""
        return pdes.peak_rss_bytes() + self.results.workers_rss_bytes

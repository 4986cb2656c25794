"""Phases of the workload, which the epochs of optical switches follow: which there are, and when NPUs report them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nadi import pdes
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.simulation.assembly import ALL_NPUS, PLAN_GROUPS, POINT_TO_POINT
from nadi.workload import Exchange, Program
from nadi.workload.node_kinds import COLLECTIVE, RECV, SEND

MAX_PHASES = 4096  # epochs that follow each other: the windows of a circuit, and times that a run has to find
Words = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PhasesOfRows:
    """The phases in a trace of one or several NPUs."""

    npus: Int64  # int64[n], the NPUs
    row: Int64  # int64[rows], rows of the trace that belong to a phase, ascending
    first: Int64  # int64[phases], place in `row` of the first row of each phase
    begins: np.ndarray  # bool[rows], whether a phase begins with the row: a receive may be posted at any time


@dataclass(frozen=True, eq=False)
class WorkloadPhases:
    """The phases of a workload: stretches of each trace in which its collectives are those of some groups."""

    order: Words  # phases one after another, as numbers of the run file's entries
    traces: Sequence[PhasesOfRows]  # of this rank's NPUs

    def reports_ps(self, results: pdes.Results, trigger: str, exchange: Exchange) -> Words:
        """Return when the last NPU reports the end of each phase but the last, in ps.

        Args:
            results: Results of a run.
            trigger: "end": an NPU reports when it has ended a phase; "begin": when it has begun the next one, too.
            exchange: Exchange of values between ranks.
        """
        reports = np.zeros(len(self.order), np.int64)
        for own in self.traces:
            for npu in own.npus.tolist():
                begin = int(results.npu_node_ptr[npu])
                # ranks without the NPU have no times
                if int(results.npu_node_ptr[npu + 1]) == begin:
                    continue
                rows = begin + own.row
                np.maximum(reports, np.maximum.reduceat(results.node_finish_ps[rows], own.first), out=reports)
                if trigger == "begin":
                    starts_ps = np.where(own.begins, results.node_start_ps[rows], pdes.LONGEST_RUN_PS)
                    starts_ps = np.minimum.reduceat(starts_ps, own.first)
                    starts_ps[starts_ps == pdes.LONGEST_RUN_PS] = 0
                    np.maximum(reports[:-1], starts_ps[1:], out=reports[:-1])
        each = np.array(exchange(reports.tolist()))
        return tuple(np.maximum.accumulate(each.max(axis=0))[:-1].tolist())


def phases_of(program: Program, phases: Sequence[Sequence[str]], exchange: Exchange) -> WorkloadPhases:
    """Return the phases of a workload, which all NPUs that have any must have in the same order.

    Raises ConfigError: a group is unknown, or two NPUs have different phases.

    Args:
        program: Work of all NPUs (`Program`).
        phases: Groups of each phase.
        exchange: Exchange of values between ranks, which know different groups.
    """
    groups = {name or ALL_NPUS for names in exchange(program.group_names) for name in names}
    known = dict.fromkeys([POINT_TO_POINT, ALL_NPUS, *PLAN_GROUPS, *sorted(groups)])
    unknown = next((name for names in phases for name in names if name not in known), None)
    if unknown is not None:
        raise ConfigError(f'[[optical]] phases: found "{unknown}"; expected some of {", ".join(known)}')
    number = {name: phase for phase, names in enumerate(phases) for name in names}
    of_group = np.array([number.get(name or ALL_NPUS, -1) for name in program.group_names])
    found = list(_by_trace(program, of_group, number.get(POINT_TO_POINT, -1)))
    # of the lowest NPU with each order, over all ranks
    orders: dict[Words, int] = {}
    for own in exchange([(order, int(rows.npus[0])) for order, rows in found]):
        for order, npu in own:
            orders[order] = min(npu, orders.get(order, npu))
    (order, npu), *others = sorted(orders.items(), key=lambda item: item[1]) or [((), 0)]
    if others:
        at = next(i for i, (a, b) in enumerate(zip((*order, -1), (*others[0][0], -1), strict=False)) if a != b)
        said = [
            f"npu {which} has {_said(phases, own[at]) if at < len(own) else 'none'}"
            for own, which in ((order, npu), others[0])
        ]
        raise ConfigError(
            f"[[optical]] phases: of its phases in the order of the trace, the one after {at} others differs: "
            f"{' and '.join(said)}; expected the same phases of all NPUs that have any"
        )
    if len(order) > MAX_PHASES:
        raise ConfigError(f"[[optical]] phases: found {len(order):,} one after another; expected at most {MAX_PHASES}")
    return WorkloadPhases(order, [rows for _, rows in found])


def _said(phases: Sequence[Sequence[str]], phase: int) -> str:
    """Return the groups of a phase for messages."""
    return " and ".join(phases[phase])


def _by_trace(program: Program, of_group: np.ndarray, of_messages: int) -> Iterator[tuple[Words, PhasesOfRows]]:
    """Yield the order of phases, and their rows, of NPUs that have any; those with equal phases share them."""
    alike: dict[tuple[int, bytes], list[int]] = {}
    for npu, trace in enumerate(program.trace_of_npu[: program.npus].tolist()):
        if trace >= 0:
            slots = program.slot_group[program.slot_ptr[npu] : program.slot_ptr[npu + 1]]
            alike.setdefault((trace, of_group[slots].tobytes()), []).append(npu)
    for (trace, own), npus in alike.items():
        rows = slice(int(program.trace_ptr[trace]), int(program.trace_ptr[trace + 1]))
        kind = program.node_kind[rows]
        # the last entry answers for rows without a group
        phase_of_slot = np.append(np.frombuffer(own, of_group.dtype), -1)
        phase = phase_of_slot[np.where(kind == COLLECTIVE, program.node_group[rows], -1)]
        phase[(kind == SEND) | (kind == RECV)] = of_messages
        row = np.flatnonzero(phase >= 0)
        if len(row):
            first = np.flatnonzero(np.append(True, np.diff(phase[row]) != 0))
            yield tuple(phase[row][first].tolist()), PhasesOfRows(np.array(npus), row, first, kind[row] != RECV)

"""A program in the form that kernels read: its jobs, its traces and plans, and NPUs with rows that are ready."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from nadi.pdes.construction.layout import Layout, Part, offsets
from nadi.pdes.construction.settings import Settings
from nadi.pdes.core import Array, Graph, Int32, Int64, Program, Record, Rows, Schedules, packet, state as s
from nadi.pdes.core.jit import aligned, full, rows_of, zeros
from nadi.pdes.core.rows.network import NicPort, Port
from nadi.pdes.core.rows.npu import (
    CreditPacer,
    GroupView,
    JobTotal,
    Npu,
    PlanLane,
    PlanStep,
    SharedMemory,
    System,
    Tokens,
    Turns,
)
from nadi.pdes.network.framing import NVSWITCH_KIND
from nadi.pdes.nic.counting import PRIME_A, PRIME_B
from nadi.pdes.nic.receiver_credits import PULL_RATE, QUANTUM_BYTES
from nadi.pdes.npu.agenda import begin_slot

NOBODY = (1 << 20) - 1  # rank of NPUs without a job, where there are several jobs
_PLAIN_WORDS = 4  # words of totals that are not modulo a prime
_JOB_SHIFT = 20  # of the job in `Jobs.who`


def job_tables(program: Program, npus: int, queue_pairs: str = "pair") -> s.JobTables:
    """Return the tables of jobs, with totals of zero and without bytes on links.

    Args:
        program: Work of all NPUs (`Program`).
        npus: Number of NPUs of the fabric that runs.
        queue_pairs: "pair" or "message", the choice of jobs without one of their own: a queue pair per pair of NPUs or
            per message.
    """
    jobs, groups = program.jobs, len(program.group_ptr) - 1
    if jobs is None:
        everyone = np.arange(npus)
        total = rows_of(JobTotal, 1, pair_per_message=queue_pairs == "message")
        return s.JobTables(aligned(everyone), aligned(everyone, np.int32), _numbers(groups), total, zeros(1))
    count = len(jobs.begin_ps)
    # NPUs without a job count in the last row
    who = full(npus, NOBODY | count << _JOB_SHIFT)
    for job in range(count):
        own = jobs.npu[jobs.rank_ptr[job] : jobs.rank_ptr[job + 1]]
        who[own] = np.arange(len(own)) | job << _JOB_SHIFT
    npu = np.arange(npus)
    npu[: len(jobs.npu)] = jobs.npu
    group = np.concatenate([np.arange(size) for size in np.diff(jobs.group_ptr)])
    own_pairs = [(own or queue_pairs) == "message" for own in (*jobs.queue_pairs, "")]
    total = rows_of(JobTotal, count + 1, begin_ps=np.append(jobs.begin_ps, 0), pair_per_message=own_pairs)
    return s.JobTables(aligned(who, np.int64), aligned(npu, np.int32), aligned(group, np.int32), total, zeros(1))


def slow_1000ths(jobs: s.JobTables, settings: Settings, npus: Array) -> Int64:
    """Return int64[n]: the factors in 1000ths by which computation of `npus` is slower while a collective runs.

    Args:
        jobs: Jobs that share the fabric (`JobTables`).
        settings: Settings of the run.
        npus: int64[n], numbers of NPUs of the fabric.
    """
    factors = np.full(len(jobs.total), settings.compute_slowdown)
    if settings.job_slowdowns:
        factors[:] = *settings.job_slowdowns, 1.0  # the last is that of NPUs without a job
    return np.rint(s.SLOWDOWN_UNIT * factors).astype(np.int64)[packet.job_of(jobs.who[npus])]


def own_tables(jobs: s.JobTables, links: int) -> s.JobTables:
    """Return the tables of jobs of one LP, with totals of its own; links: rows of `tx`."""
    total = jobs.total.copy()
    rows = rows_of(JobTotal, len(total))
    rows[:] = total
    return jobs._replace(total=rows, link_bytes=zeros(links * jobs_per_link(jobs)))


def jobs_per_link(jobs: s.JobTables) -> int:
    """Return the rows of `link_bytes` per link: one for each job and one for none; 0 where there is one job.

    Args:
        jobs: Jobs that share the fabric (`JobTables`).
    """
    return len(jobs.total) if len(jobs.total) > 1 else 0


def begins_ps(jobs: s.JobTables, npus: Array) -> Int64:
    """Return int64[n]: the times at which the jobs of `npus` begin."""
    times: Int64 = jobs.total.begin_ps[packet.job_of(jobs.who[npus])]
    return times


def places(program: Program, npus: Array) -> Any:
    """Return the places of `npus` among the ranks of all jobs; aggregators, which are no ranks, keep their numbers.

    Args:
        program: Work of all NPUs (`Program`).
        npus: int64[n], numbers of NPUs and aggregators.
    """
    if program.jobs is None:
        return npus
    place = program.jobs.place
    return np.where(npus < len(place), np.append(place, 0)[np.minimum(npus, len(place))], npus)


def digests(totals: Int64, program: Program) -> dict[str, Any]:
    """Return the fields digest and job_digests of Results, the same for any partition.

    Args:
        totals: int64[jobs, 4 or 6], digests, messages, trace rows, and sums of messages of each job (JobTotal), which
            may be sums of several LPs; the last of several jobs is none.
        program: Work of all NPUs (`Program`).
    """
    jobs = program.jobs
    if totals.shape[1] > _PLAIN_WORDS:
        # sums of several LPs again below their primes
        totals = np.concatenate([totals[:, :_PLAIN_WORDS], totals[:, _PLAIN_WORDS:] % (PRIME_A, PRIME_B)], axis=1)
    if jobs is None:
        return {"digest": _digest(totals)}
    whole = np.concatenate([totals.reshape(-1), jobs.npu, jobs.begin_ps])
    return {"digest": _digest(whole), "job_digests": tuple(_digest(job) for job in totals[:-1])}


def _digest(numbers: Int64) -> str:
    """Return a hash in 32 hexadecimal digits."""
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()[:32]


def _numbers(count: int) -> Any:
    return aligned(np.arange(max(1, count)), np.int32)


# Traces and plans, and NPUs with idle ports and rows that are ready.


def trace_tables(program: Program, p2p_share: float) -> s.Trace:
    """Return the program's traces under the kernel's names and types; worlds of one process share them.

    Args:
        program: Work of all NPUs (`Program`).
        p2p_share: Share of its NIC's rate that an NPU uses for point-to-point messages to other hosts.
    """
    channels = program.channels  # group, number and share of each; p2p_share applies between hosts
    connection = packet.P2P | _numbered(channels.connection, channels.shares)
    connection = np.where(channels.between_hosts & (p2p_share < 1), packet.P2P, connection)
    derived = {"connections": padded(connection, np.int64)}
    names = ((name, name if hasattr(program, name) else f"node_{name}") for name in s.Trace.__annotations__)
    plain = {name: _typed(s.Trace, name, getattr(program, field)) for name, field in names if name not in derived}
    return s.Trace(**derived, **plain)


def plan_tables(program: Program) -> s.PlanTables:
    """Return the program's groups and the schedules of its collectives under the kernel's names and types."""
    schedules = program.schedules
    size, parts, first = schedules.view_size, schedules.view_parts, schedules.view_ptr[:-1]
    views = rows_of(GroupView, len(size), members=size, parts=parts, first=first)
    steps = rows_of(PlanStep, 1)
    if len(schedules.steps) > 0:  # named rows that share the memory of the schedules
        steps = np.ascontiguousarray(schedules.steps, np.int32).reshape(-1).view(PlanStep.dtype).view(np.recarray)
    derived = {"lane_row": _lane_rows(schedules), "view_row": views, "step": steps}
    owners = ((name, program if hasattr(program, name) else schedules) for name in s.PlanTables.__annotations__)
    plain = {name: _typed(s.PlanTables, name, getattr(owner, name)) for name, owner in owners if name not in derived}
    return s.PlanTables(**derived, **plain)


def _typed(kind: Any, name: str, values: ArrayLike) -> Any:
    """Return values in the type that the NamedTuple class `kind` declares for the field `name`."""
    return padded(values, kind.__annotations__[name].__metadata__[0])


def _lane_rows(schedules: Schedules) -> Rows:
    """Return the rows of all lanes, with views counted over all schedules."""
    lanes = len(schedules.lane_ptr) - 1
    has_delay = (schedules.lane_latency_ps != 0) | (schedules.lane_begins != 0)
    rows = rows_of(
        PlanLane,
        lanes,
        plain=schedules.lane_plain & (schedules.lane_gate < 0) & ~has_delay & (schedules.lane_blocking == 0),
        view_number=schedules.lane_view,
        gate=np.where(schedules.lane_phase >= 0, schedules.lane_gate, -1),
        alike=_lanes_of_phase(schedules),
        connection=_numbered(schedules.lane_connection, schedules.lane_shares),
        waited_for=_waited_for(schedules),
    )
    for name in ("part", "parts", "chunks", "wire_num", "wire_den", "latency_ps", "phase", "blocking", "begins"):
        rows[name][:lanes] = getattr(schedules, f"lane_{name}")
    views = rows.view_number[:lanes]
    for base, first in zip(schedules.view_base.tolist(), schedules.plan_of_ptr[:-1].tolist(), strict=True):
        if base:  # only a schedule of one plan has views
            plan = schedules.plan_of[first]
            own = views[schedules.plan_ptr[plan] : schedules.plan_ptr[plan + 1]]
            own[own >= 0] += base
    return rows


def _numbered(connection_numbers: Array, shares: Array) -> Int64:
    """Return numbers and shares of connections as words without a group; share n = 1 / n of the line rate."""
    shares = np.round(shares * packet.SHARE_UNITS).astype(np.int64)
    connection_numbers = connection_numbers.astype(np.int64)
    return (
        connection_numbers << packet.CONNECTION_SHIFT
        | np.where(shares > packet.SHARE_UNITS, shares, 0) << packet.SHARES_SHIFT
    )


def _lanes_of_phase(schedules: Schedules) -> Int64:
    """Return int64[lanes], the number of lanes of a lane's plan that are in the same phase."""
    plan = np.repeat(np.arange(len(schedules.plan_ptr) - 1), np.diff(schedules.plan_ptr))
    pairs = np.stack([plan, schedules.lane_phase], axis=1)
    _, which, count = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    return count[which.reshape(-1)]


def _waited_for(schedules: Schedules) -> Int64:
    """Return int64[lanes], the lanes of its plan that wait for a lane's steps: a bit set, without lanes beyond it."""
    waited_for = np.zeros(len(schedules.lane_ptr) - 1, np.int64)
    number = np.arange(len(waited_for)) - np.repeat(schedules.plan_ptr[:-1], np.diff(schedules.plan_ptr))
    lane = np.repeat(np.arange(len(waited_for), dtype=np.int32), np.diff(schedules.lane_ptr))
    needs = schedules.dep_lane
    first = needs >= 0
    # once per pair of lanes, since steps of a lane mostly wait for the same one
    first[1:] &= (lane[1:] != lane[:-1]) | (needs[1:] != needs[:-1])
    lane, needs = lane[first], needs[first]
    in_set = number[lane] < s.PENDING_LANES
    lane, needs = lane[in_set], needs[in_set]
    # several lanes may wait for one, so the plain operator would lose bits
    np.bitwise_or.at(waited_for, lane - number[lane] + needs, 1 << number[lane])
    return waited_for


def padded(values: ArrayLike, dtype: DTypeLike) -> Any:
    """Return a contiguous array of the type with at least one element (an empty array has no address).

    Args:
        values: Items of the array.
        dtype: Type of the items of the result.
    """
    values = np.ascontiguousarray(values, dtype)
    return values if len(values) else np.zeros(1, dtype)


def npu_rows(
    program: Program, jobs: s.JobTables, part: Part, layout: Layout, settings: Settings
) -> tuple[Rows, Int32, Int64]:
    """Return the table `npu` of an LP, its trace rows' states (RowStates.state), and offsets of these.

    Args:
        program: Work of all NPUs (`Program`).
        jobs: Jobs that share the fabric (`JobTables`).
        part: Nodes and links of the LP (`Part`).
        layout: Division of the fabric among LPs (`Layout`).
        settings: Settings of the run.
    """
    npu = rows_of(Npu, part.npus)
    own = npu[: part.npus]
    own.ports = np.diff(part.out_ptr[: part.npus + 1])
    own.heap = offsets(_slots(own.ports, layout, settings))[:-1]
    own.number = part.nodes[: part.npus]
    trace = np.full(part.npus, -1, np.int64)
    busy = np.flatnonzero(own.number < program.npus)
    trace[busy] = program.trace_of_npu[own.number[busy]]
    has_trace = np.flatnonzero(trace >= 0)
    own.slot_base[has_trace] = program.slot_ptr[own.number[has_trace]]
    state, row_ptr = begin_traces(npu, trace, program)
    own.rows_left = np.diff(row_ptr)
    own.place = places(program, own.number)
    own.job_begin_ps = begins_ps(jobs, own.number)
    later = np.flatnonzero((own.job_begin_ps > 0) & (own.ready_head >= 0))
    # without parents, but ready only when their job begins
    own.job_row[later] = own.ready_head[later]
    own.ready_head[later] = -1
    return npu, state, row_ptr


def begin_traces(npu: Rows, trace_of_row: Int64, program: Program) -> tuple[Int32, Int64]:
    """Assign traces to idle NPUs, or to classes of NPUs (rows of `npu`); all rows without parents are ready.

    Args:
        npu: Rows of `Npu`, which the function changes.
        trace_of_row: int64[n], number of the distinct trace of each row, -1 = no trace.
        program: Work of all NPUs (`Program`).
    """
    # Returns `RowStates.state` of their trace rows, and offsets of these, int64[n + 1].
    trace_ptr = program.trace_ptr
    left = program.node_deps.astype(np.int32)
    ends = np.full((2, len(trace_ptr) - 1), -1)
    for number, (begin, end) in enumerate(zip(trace_ptr[:-1].tolist(), trace_ptr[1:].tolist(), strict=True)):
        roots = np.flatnonzero(left[begin:end] == 0)
        if len(roots):
            left[begin + roots] = np.append(roots[1:], -1)  # linked: each ready row names the next
            ends[:, number] = roots[0], roots[-1]
    has_trace = np.flatnonzero(trace_of_row >= 0)
    own_trace = trace_of_row[has_trace]
    length = np.zeros(len(trace_of_row), np.int64)
    length[has_trace] = np.diff(trace_ptr)[own_trace]
    row_ptr = offsets(length)
    npu.row_base[: len(trace_of_row)] = row_ptr[:-1]
    npu.trace_number[has_trace] = own_trace
    npu.trace_base[has_trace] = trace_ptr[own_trace]
    npu.ready_head[has_trace], npu.ready_tail[has_trace] = ends[:, own_trace]
    state = [left[trace_ptr[number] : trace_ptr[number + 1]] for number in own_trace.tolist()]
    return aligned(np.concatenate([*state, left[:0]]), np.int32), row_ptr


def row_states(state: Int32, slots: int, *, is_recorded: bool) -> s.RowStates:
    """Return the states of trace rows, none begun.

    Args:
        state: int32[rows], the result of `begin_traces`.
        slots: Number of group slots of all NPUs.
        is_recorded: Whether the run keeps the start and the end of every trace row.
    """
    kept = len(state) if is_recorded else 1
    return s.RowStates(
        state=state,
        flag=zeros(len(state), np.int8),
        start=full(kept, -1),
        finish=full(kept, -1),
        slot_next=zeros(slots, np.int32),
    )


def _slots(ports: Int64, layout: Layout, settings: Settings) -> Int64:
    """Return int64[n], entries of NPUs' heaps: ports (twice with pacing), lanes, timer, agenda, messages, credits."""
    # ports: int64[n], number of ports of each NPU.
    return ports * (2 if layout.control.update else 1) + s.LANES + 3 + settings.receiver_credits


def credit_pacers(part: Part, graph: Graph, settings: Settings) -> Rows:
    """Return the pacers of an LP's NPUs, at the rate of each one's links to other switches than NVSwitches.

    Args:
        part: Nodes and links of the LP (`Part`).
        graph: The fabric (`Graph`).
        settings: Settings of the run.
    """
    pacers = rows_of(CreditPacer, part.npus if settings.receiver_credits else 1)
    if settings.receiver_credits:
        is_nic = graph.node_kind[graph.link_dst] != NVSWITCH_KIND
        rates_bps = np.bincount(graph.link_src, graph.link_rate_bps * is_nic, graph.nodes)[part.nodes[: part.npus]]
        # an LP without NPUs has a row, too, which nobody uses
        pacers.ps_per_quantum[: part.npus] = (
            s.PS_PER_BYTE_AT_1_BPS * QUANTUM_BYTES / PULL_RATE / np.maximum(rates_bps, 1)
        )
    return pacers


def nic_ports(part: Part, layout: Layout, settings: Settings, *, has_nics: bool) -> Rows:
    """Return the rows of `NicPort` of an LP's ports: those of an NPU to ordinary switches may be one NIC.

    Args:
        part: Nodes and links of the LP (`Part`).
        layout: Division of the fabric among LPs (`Layout`).
        settings: Settings of the run.
        has_nics: Whether some NPU has several ports to ordinary switches.
    """
    is_joined = has_nics and settings.spreads_ports
    if not is_joined and not settings.credits:
        return rows_of(NicPort, 1)
    ports = part.links[: part.out_ptr[part.npus]]
    rows = rows_of(NicPort, len(ports), ports=1)
    rows.first[: len(ports)] = np.arange(len(ports))
    is_nic = layout.graph.node_kind[layout.graph.link_dst[ports]] != NVSWITCH_KIND
    for npu in range(part.npus if is_joined else 0):
        own = np.arange(part.out_ptr[npu], part.out_ptr[npu + 1])
        own = own[is_nic[own]]
        # queue pairs of a NIC look at its ports as a range
        if len(own) > 1 and own[-1] - own[0] < len(own):
            rows.first[own] = own[0]
            rows.ports[own[0]] = len(own)
            rows.ps_per_byte[own[0]] = 1 / (1 / layout.fabric.psb[ports[own]]).sum()
    return rows


def idle_npus(part: Part, npu_table: Rows, const: Record, layout: Layout, settings: Settings) -> s.Npus:
    """Return the NPUs of an LP with idle ports and empty heaps.

    Args:
        part: Nodes and links of the LP (`Part`).
        npu_table: Rows of `Npu`, the result of `npu_rows`.
        const: Constants of the LP (a row `Constants`).
        layout: Division of the fabric among LPs (`Layout`).
        settings: Settings of the run.
    """
    slots = int(npu_table.heap[-1] + _slots(npu_table.ports[-1:], layout, settings)[0])
    heap = zeros(2 * slots)
    for npu in npu_table[npu_table.job_row >= 0]:  # its job begins later: the only event
        heap[2 * npu.heap : 2 * npu.heap + 2] = npu.job_begin_ps, begin_slot(npu.ports)
    npu_table.heap_size[npu_table.job_row >= 0] = 1
    return s.Npus(
        npu=npu_table,
        port=rows_of(Port, part.out_ptr[part.npus]),
        nic=nic_ports(part, layout, settings, has_nics=bool(const.several_nics)),
        heap=heap,
        token=rows_of(Tokens, part.npus * int(const.gated_dimensions)),
        system=rows_of(System, part.npus),
        pacer=credit_pacers(part, layout.graph, settings),
        turns=rows_of(Turns, part.npus if settings.one_at_a_time else 0),
        memory=rows_of(SharedMemory, part.npus if settings.remote_sharers > 1 else 0),
        busy=zeros(part.npus, np.int32),
    )

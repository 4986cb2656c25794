"""Estimate of the work of a run before it begins, and the resources that the run needs.

The progress display counts against the estimate. Checks refuse a run that needs more memory than is free, or more than
a day, unless the user gives `--force`. A batch job requests hours and memory with a margin.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi import partition, topologies
from nadi.errors import ConfigError
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import GIB
from nadi.launching import cores
from nadi.launching.progress import ExpectedWork, duration_text
from nadi.launching.ranks import RankGather
from nadi.pdes import Settings, may_replay
from nadi.pdes.traces import counted_rows, replayable_rows
from nadi.simulation.assembly import engine_inputs, of_packets
from nadi.topologies import Graph, path_links
from nadi.workload import Program
from nadi.workload.node_kinds import NOOP, SEND
from nadi.workload.program.traffic import sample, traffic

HOPS_PER_S = 5e6  # packet-hops per second of one worker, a lower bound for machines of 2025
# Packet-hops per second of one worker on free cores of 2026, for what is announced before a run: 0.8e7 to 1.4e7 in
# steps of docs/explanation/reuse.md, a tenth of it with MRC
_USUAL_HOPS_PER_S = 1e7
_ANNOUNCED_S = 60.0  # expected wall time in seconds from which it is announced
MESSAGES_PER_S = 1e6  # messages per second at message level, a lower bound for machines of 2025
MAX_WALL_S = 86_400.0  # longest wall time of a run in seconds: one day
# memory in bytes per trace node of a run at closed forms and its analysis, measured with 10^6 to 10^7 nodes
ROW_BYTES = 60
NODE_BYTES = 4000  # memory in bytes per node of a trace during its generation, measured with traces of 10^5 nodes
_HOUR_S = 3600
# ratio of the requested to the expected time and memory: packets are retransmitted, and parts of a fabric are not equal
MARGIN = 2.0
MIN_TIME_LIMIT_S = 900.0  # minimum time limit: every node compiles kernels and reads traces
PROCESS_BYTES = 500_000_000  # memory of a process before it simulates: Python, its packages and the compiler of kernels
# Memory in bytes of each rank of a node, per rank and per link of the fabric: Python and kernels (measured: 71 MB), and
# fabric, layout, program and world (71 to 93 MB with 98,304 links); see docs/explanation/performance.md
_RANK_BYTES, _RANK_LINK_BYTES = 100_000_000, 1000
_TIME_LIMIT_STEP_S = 300  # step in seconds to which time limits are rounded up
MAX_PAIRS = 1 << 18  # maximum number of pairs of NPUs whose paths and packets are counted; of more, a sample is counted
# Memory in bytes, measured with fabrics of 10^3 to 10^4 NPUs, 2026-11-22.
_PAIR_BYTES, _CONTROLLED_PAIR_BYTES = 450, 250  # per pair of NPUs, and more with congestion control
_MESSAGE_BYTES = 120  # per recorded message
MAX_ROWS_OF_MESSAGES = 1 << 22  # messages of a run in which, by default, those of replayed collectives have rows too
_LINK_BYTES, _NPU_BYTES, _BASE_BYTES = 1000, 3000, 60_000_000  # per link, per NPU, and per rank
# per row of an NPU's trace: the count of unfinished parents; if recorded, start and end, and what their analysis takes
# after the run (measured with GPT-3's traces of 226,000, 904,000 and 1,880,000 rows: 220 to 330 with start and end)
_ROW_BYTES, _ROW_TIMES_BYTES, _ROW_ANALYSIS_BYTES = 4, 16, 200


class Estimate(NamedTuple):
    """Work of a run, or of one rank's NPUs."""

    messages: float  # number of data messages
    packets: float  # number of data packets; at message level, the number of messages
    packet_hops: float  # packet-hops of data and acknowledgements; at message level, message-hops
    wire_bytes: float  # bytes on the wire of data packets with their headers, and of acknowledgements
    pairs: float  # number of pairs of sender and receiver, counted per size that a collective has
    # approximate memory of the engine in bytes, including rows of traces, excluding the fabric and files
    memory_bytes: float
    replayable: float = 0  # of `messages`, those inside NVLink domains, whose collectives may be replayed
    replayable_hops: float = 0  # packet-hops of these, which are not in `packet_hops`
    counted_hops: float = 0  # of `packet_hops`, those of periods of the run that are likely to be counted
    spanned_rows: float = 0  # trace rows of all NPUs from the first of these periods to the last
    earlier_rows: float = 0  # trace rows of all NPUs before them


class _Sent(NamedTuple):
    """What the messages of a program take; of messages, with models of the network without packets."""

    messages: float
    packets: float
    hops: float  # of data and acknowledgements
    wire_bytes: float
    pairs: float


def estimate(graph: Graph, program: Program, settings: Settings, *, one_process: bool = False) -> Estimate:
    """Return the work of a program on a fabric, on a rank that of its NPUs; without losses and detours.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        one_process: Whether the run's workers are threads of one process, so that it looks for periods.
    """
    if settings.flow_groups is not None:
        plain = replace(settings, flow_groups=None, reuse=False)
        rest = estimate(graph, of_packets(program, settings.flow_groups), plain)
        return estimate(graph, program, plain)._replace(packets=rest.packets, packet_hops=rest.packet_hops)
    fabric, running, _ = engine_inputs(graph, program)
    sent = _sent(fabric, running, settings)
    per_pair = _PAIR_BYTES + (_CONTROLLED_PAIR_BYTES if settings.congestion_control.update else 0)
    queue_pairs = min(sent.pairs, float(graph.npus) ** 2)
    queue_pairs += _messages_with_pairs(program, settings)
    memory = fabric_bytes(graph) + per_pair * queue_pairs
    memory += _MESSAGE_BYTES * sent.messages * settings.record_flows
    rows = _rows_of_npus(program, np.ones(len(program.node_kind), bool))
    memory += rows * (_ROW_BYTES + (_ROW_TIMES_BYTES + _ROW_ANALYSIS_BYTES) * settings.record_nodes)
    own = Estimate(sent.messages, sent.packets, sent.hops, sent.wire_bytes, sent.pairs, memory)
    if not may_replay(fabric, settings):
        replayed = np.zeros(len(running.node_kind), bool)
    else:  # collectives of NVLink domains are taken to repeat
        replayed = replayable_rows(fabric, running, settings)
        rest_sent = _sent(fabric, _without(running, replayed), settings)
        own = own._replace(
            packet_hops=rest_sent.hops,
            replayable=sent.messages - rest_sent.messages,
            replayable_hops=sent.hops - rest_sent.hops,
        )
    if not one_process:
        return own
    forecast = counted_rows(running, settings)
    if not forecast.counted.any():
        return own
    simulated = _sent(fabric, _without(running, replayed | forecast.counted), settings)
    return own._replace(
        counted_hops=own.packet_hops - simulated.hops,
        spanned_rows=_rows_of_npus(running, forecast.spanned),
        earlier_rows=_rows_of_npus(running, forecast.earlier),
    )


def _sent(fabric: Graph, program: Program, settings: Settings) -> _Sent:
    """Return what the messages of the engine's program take on its fabric."""
    sampled = sample(program, MAX_PAIRS)
    messages = np.maximum(sampled.messages, 1)
    model = settings.fidelity.model
    # an empty message has a packet, too
    of_message = np.maximum(-(-sampled.bytes // (messages * settings.mtu_bytes)), 1)  # packets
    packets = sampled.weight * messages * (of_message if model.has_headers else 1)
    moved = packets if model.has_packets else sampled.weight * messages
    # each packet is acknowledged over as many links
    hops = moved * path_links(fabric, sampled.src, sampled.dst) * (2 if model.has_packets else 1)
    wire_bytes = float((sampled.weight * sampled.bytes).sum())
    wire_bytes += model.has_headers * float(packets.sum()) * (settings.header_bytes + settings.ack_bytes)
    sent = float((sampled.weight * sampled.messages).sum())
    return _Sent(sent, float(moved.sum()), float(hops.sum()), wire_bytes, float(sampled.weight.sum()))


def _without(program: Program, rows: NDArray[np.bool_]) -> Program:
    """Return a program in which some rows send nothing; rows: bool[N]."""
    return program._replace(
        node_schedule=np.where(rows, -1, program.node_schedule).astype(np.int32),
        node_kind=np.where(rows & (program.node_kind == SEND), NOOP, program.node_kind).astype(np.int8),
    )


def _rows_of_npus(program: Program, rows: NDArray[np.bool_]) -> int:
    """Return how many of some rows, bool[N], the traces of all NPUs have."""
    before = np.append(0, np.cumsum(rows))
    of_trace = np.diff(before[program.trace_ptr])
    return int(of_trace[program.trace_of_npu[program.trace_of_npu >= 0]].sum())


def _messages_with_pairs(program: Program, settings: Settings) -> int:
    """Return the number of point-to-point messages of a rank's NPUs that have queue pairs of their own."""
    jobs = program.jobs.queue_pairs if program.jobs is not None else ()
    has_own = np.array([(own or settings.queue_pairs) == "message" for own in (*jobs, "")])
    if not has_own.any():
        return 0
    # sends up to each row, so that a trace's number is the difference at its ends
    before = np.concatenate([[0], np.cumsum(program.node_kind == SEND)])
    of_trace = np.diff(before[program.trace_ptr])
    counted = program.trace_of_npu >= 0
    if program.jobs is not None:
        counted &= has_own[program.jobs.of_npus()]  # NPUs without a job have no messages
    return int(of_trace[program.trace_of_npu[counted]].sum())


def with_rows_of_messages(
    flows: str, settings: Settings, own: Estimate, num_messages: float
) -> tuple[Settings, Estimate]:
    """Return settings and estimate of a run that may leave out the rows of replayed messages.

    flows: [output] flows; own: work of a rank; num_messages: messages of all ranks.
    """
    if flows != "auto" or not settings.record_flows or num_messages <= MAX_ROWS_OF_MESSAGES:
        return settings, own
    memory_bytes = own.memory_bytes - _MESSAGE_BYTES * own.replayable
    return replace(settings, record_replayed=False), own._replace(memory_bytes=memory_bytes)


def fabric_bytes(graph: Graph) -> float:
    """Return the memory in bytes that the engine takes for a fabric, on every rank.

    Args:
        graph: The fabric (`Graph`).
    """
    return _BASE_BYTES + _LINK_BYTES * graph.links + _NPU_BYTES * graph.npus


def of_all_ranks(own_work: Estimate, ranks: RankGather) -> Estimate:
    """Return the sum of the estimates of all ranks; every rank must call this function.

    Args:
        own_work: Work of this rank.
        ranks: Exchange of values between ranks.
    """
    return Estimate(*(sum(column) for column in zip(*ranks.exchange(own_work), strict=True)))


def expected_work(estimated_work: Estimate, settings: Settings) -> ExpectedWork:
    """Return a run's work in units of progress: packet-hops, or messages at message level.

    Args:
        estimated_work: Estimate of the run's work.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    if not settings.fidelity.model.has_packets:
        return ExpectedWork(estimated_work.messages)
    periods = estimated_work.counted_hops, estimated_work.spanned_rows, estimated_work.earlier_rows
    return ExpectedWork(estimated_work.packet_hops, *periods)


def work(estimated_work: Estimate, settings: Settings) -> float:
    """Return a run's number of units of progress that it neither replays nor counts.

    Args:
        estimated_work: Estimate of the run's work.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    expected = expected_work(estimated_work, settings)
    return expected.units - expected.counted


def announcement(estimated_work: Estimate, settings: Settings, workers: int) -> str:
    """Return what a run of packets is expected to take, if that is long; else "".

    Args:
        estimated_work: Estimate of the run's work.
        settings: The engine's settings of the run (`pdes.Settings`).
        workers: Number of workers of all ranks.
    """
    seconds = work(estimated_work, settings) / (_USUAL_HOPS_PER_S * workers)
    if not settings.fidelity.model.has_packets or seconds < _ANNOUNCED_S:
        return ""
    saved = estimated_work.replayable_hops + estimated_work.counted_hops
    repeated = f" ({saved:.3g} more repeat and are counted)" if saved else ""
    return (
        f"expected: {work(estimated_work, settings):.3g} packet-hops{repeated}, about {duration_text(seconds)} on free "
        f"cores, {_gb(PROCESS_BYTES + estimated_work.memory_bytes)}"
    )


def _rate(settings: Settings, workers: int) -> float:
    """Return the units of work that workers do per second."""
    return HOPS_PER_S * workers if settings.fidelity.model.has_packets else MESSAGES_PER_S


def check_fabric(topology: str | Path | Mapping[str, object], *, force: bool) -> None:
    """Refuse a fabric that needs more memory than is free; TopologyError if its parameters are wrong.

    Args:
        topology: Specification of the fabric, as users write it.
        force: Whether to accept any amount.
    """
    extent = topologies.extent(topology)
    if extent is not None:
        label = topologies.format_spec(topology) if isinstance(topology, Mapping) else topology
        subject = f"{label}: {extent.nodes:,} nodes and {extent.cables:,} cables"
        _check_free_memory(subject, extent.peak_bytes, "a smaller fabric", force=force)


def check_run(own_work: Estimate, total_work: Estimate, settings: Settings, num_workers: int, *, force: bool) -> None:
    """Refuse a run whose own work needs too much memory, or all its work more than a day.

    Args:
        own_work: Work of this rank.
        total_work: Work of all ranks.
        settings: The engine's settings of the run (`pdes.Settings`).
        num_workers: Number of workers of all ranks.
        force: Whether to accept any amount.
    """
    messages = f"{total_work.messages:,.0f} messages between {total_work.pairs:,.0f} pairs of NPUs"
    _check_free_memory(messages, own_work.memory_bytes, "a smaller run", force=force)
    rate = _rate(settings, num_workers)
    seconds = work(total_work, settings) / rate
    if seconds > MAX_WALL_S and not force:
        is_of_packets = settings.fidelity.model.has_packets
        unit = f"packet-hops ({total_work.packets:.3g} packets)" if is_of_packets else "messages"
        raise ConfigError(
            f"{work(total_work, settings):.3g} {unit} would take about {seconds / _HOUR_S:,.0f} hours at {rate:.3g} a "
            "second; expected less than 24, or --force"
        )


def schedule_bytes(*, force: bool) -> int | None:
    """Return the memory in bytes for plans of collectives during their construction; None = unlimited.

    Args:
        force: Whether to accept any amount.
    """
    return None if force else available_bytes()


def check_rows(num_nodes: int, *, force: bool = False) -> None:
    """Refuse a run at closed forms if the trace nodes of distinct NPUs need more than free memory.

    Args:
        num_nodes: Number of these trace nodes.
        force: Whether to accept any amount.
    """
    _check_free_memory(
        f"{num_nodes:,} trace nodes of distinct NPUs", num_nodes * ROW_BYTES, "a smaller run", force=force
    )


def check_counters(graph: Graph, program: Program, own_work: Estimate) -> None:
    """Refuse a run in which the NPUs of this process would send more bytes over a link than its counter holds.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        own_work: Work of this rank.
    """
    if own_work.wire_bytes <= MAX_BYTES:
        return
    fabric, running, _ = engine_inputs(graph, program)
    sent = traffic(running)
    # headers and acknowledgements in proportion to the payload
    share = own_work.wire_bytes / max(float(sent.bytes.sum()), 1.0)
    of_link = partition.link_loads(fabric, sent.src, sent.dst, sent.bytes * share)
    link = int(of_link.argmax())
    if of_link[link] > MAX_BYTES:
        ends = f"{fabric.node_name(fabric.link_src[link])} - {fabric.node_name(fabric.link_dst[link])}"
        raise ConfigError(
            f"link {ends} of {graph.name} would send about {of_link[link] / 1e12:,.1f} TB in the run; expected at most "
            f"{MAX_BYTES / 1e12:.1f} TB, which its counter holds"
        )


def checker(graph: Graph, settings: Settings, workers: int, *, force: bool) -> Callable[[Program], None]:
    """Return a function that refuses programs of all NPUs as `check_run` and `check_counters` do.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        workers: Number of workers.
        force: Whether to accept any amount.
    """

    def check(program: Program) -> None:
        expected = estimate(graph, program, settings)
        check_run(expected, expected, settings, workers, force=force)
        check_counters(graph, program, expected)

    return check


def check_trace(
    num_nodes: int, *, fewer: str = "layers or iterations", node_bytes: int = NODE_BYTES, force: bool
) -> None:
    """Refuse to generate a trace that needs more memory than is free.

    Args:
        num_nodes: Number of trace nodes.
        fewer: Quantity that the user can reduce, for the text of the refusal.
        node_bytes: Memory in bytes per trace node.
        force: Whether to accept any amount.
    """
    _check_free_memory(f"a trace of {num_nodes:,} nodes", num_nodes * node_bytes, f"fewer {fewer}", force=force)


def _check_free_memory(subject: str, needed_bytes: float, alternative: str, *, force: bool) -> None:
    """Refuse `subject` if it needs more memory than is free, unless `force`; `alternative` names what needs less."""
    free = None if force else available_bytes()
    if free is not None and needed_bytes > free:
        raise ConfigError(
            f"{subject} would take about {_gb(needed_bytes)} of memory, {_gb(free)} are free; "
            f"expected {alternative}, or --force"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process may still use, by proc and sys in `root`: free memory and control groups."""
    free = [
        int(line.split()[1]) * 1024 for line in cores.lines(root / "proc/meminfo") if line.startswith("MemAvailable:")
    ]
    return min([*free, *_of_groups(root)], default=None)


def _of_groups(root: Path) -> Iterator[int]:
    """Yield the unused bytes, cached files included, of each control group of this process, read below `root`."""
    for base, inside, is_v1 in cores.folders_of_groups(root, "memory"):
        limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if is_v1 else ("memory.max", "memory.current")
        for folder in (base / inside, *(base / above for above in inside.parents)):
            maximum, used = (_number(folder / name) for name in (limit, usage))
            if maximum is not None and used is not None:
                statistics = dict(line.split() for line in cores.lines(folder / "memory.stat"))
                # Linux drops cached files before it ends a process for want of memory: they count as free
                yield max(maximum - max(used - int(statistics.get("inactive_file", 0)), 0), 0)


def _number(path: Path) -> int | None:
    """Return the number in a file; None if the file holds another text, as "max"."""
    text = next(iter(cores.lines(path)), "")
    return int(text) if text.isdecimal() else None


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"


class NodeLimits(NamedTuple):
    """Resources of a node of the cluster."""

    # memory in bytes that the job requests per node; None = the check uses the free memory of this machine
    memory_bytes: int | None = None
    force: bool = False  # True = refuse nothing for its time or memory


class JobCost(NamedTuple):
    """Expected cost of a run."""

    wall_s: float  # wall-clock time in seconds from start to end
    memory_bytes: float  # memory in bytes per node

    def __str__(self) -> str:
        """Return the cost in words, rounded up to minutes, or to tenths of hours."""
        minutes = math.ceil(self.wall_s / 60)
        time = f"{minutes} minutes" if minutes < 120 else f"{self.wall_s / 3600:.1f} hours"
        return f"about {time} and {self.memory_bytes / 1e9:.1f} GB on each node"

    @property
    def time_limit(self) -> str:
        """Return the time limit in SLURM's format HH:MM:SS, with a margin, in steps of five minutes."""
        whole_s = math.ceil(max(MARGIN * self.wall_s, MIN_TIME_LIMIT_S) / _TIME_LIMIT_STEP_S) * _TIME_LIMIT_STEP_S
        return f"{whole_s // 3600:02}:{whole_s // 60 % 60:02}:{whole_s % 60:02}"

    @property
    def memory_limit(self) -> str:
        """Return the memory per node in SLURM's format, in GiB, with a margin."""
        return f"{math.ceil(MARGIN * self.memory_bytes / GIB)}G"


def cost_of_packets(
    total_work: Estimate,
    graph: Graph,
    settings: Settings,
    num_nodes: int,
    ranks_per_node: int,
    workers: int,
    limits: NodeLimits,
) -> JobCost:
    """Return the cost of a run of packets or messages on several nodes; refuse more memory than a node has, or a day.

    A node holds libraries and shared memory once; each rank holds Python, the fabric and its part of the rest.

    Args:
        total_work: Work of all ranks, with the memory that one process would need for all of it.
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
        num_nodes: Number of nodes of the cluster.
        ranks_per_node: Ranks on each of these.
        workers: Number of all workers.
        limits: Resources of a node.
    """
    of_rank = _RANK_BYTES + _RANK_LINK_BYTES * graph.links
    # what the ranks share out among them; the fabric is on each
    rest = max(total_work.memory_bytes - fabric_bytes(graph), 0.0)
    memory = PROCESS_BYTES + ranks_per_node * of_rank + rest / num_nodes
    _check_requested_memory(memory, limits)
    # memory is checked here, against the node's limit, if that is known
    own = total_work._replace(memory_bytes=memory if limits.memory_bytes is None else 0.0)
    check_run(own, total_work, settings, workers, force=limits.force)
    return JobCost(work(total_work, settings) / _rate(settings, workers), memory)


def cost_at_closed_forms(num_trace_nodes: int, graph: Graph, limits: NodeLimits) -> JobCost:
    """Return the cost of a run at closed forms, which one process does; refuse more memory than a node has.

    Args:
        num_trace_nodes: Number of trace nodes of distinct NPUs.
        graph: The fabric (`Graph`).
        limits: Resources of a node.
    """
    memory = PROCESS_BYTES + fabric_bytes(graph) + num_trace_nodes * ROW_BYTES
    _check_requested_memory(memory, limits)
    return JobCost(num_trace_nodes / MESSAGES_PER_S, memory)


def _check_requested_memory(memory_bytes: float, limits: NodeLimits) -> None:
    """Refuse a run that needs more memory than the job requests."""
    if limits.memory_bytes and memory_bytes > limits.memory_bytes and not limits.force:
        raise ConfigError(
            f"--mem: {limits.memory_bytes / 1e9:,.1f} GB on each node; the run would take about "
            f"{memory_bytes / 1e9:,.1f} GB there; expected more memory, more nodes, or --force"
        )

"""From a question to the rows of its answer: the fabric, the groups of hosts, their times, and bands around them."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nadi import topologies
from nadi.configuration.run_file import collective_config
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_NPUS
from nadi.simulation.closed_forms import program_of
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.studies.collectives import sizes_of
from nadi.studies.expectation.link_loads import MAX_CONNECTIONS, FabricTime, LinkLoads, is_hashed, is_oversubscribed
from nadi.studies.expectation.rows import ALL_SIZES, KINDS, SIZES, Expectation, ExpectedRow, Question
from nadi.studies.expectation.timing import LATENCY, LINKS, SEND_RECEIVE, CollectiveTime, Group
from nadi.topologies import clusters
from nadi.validation import collective_question, ratio_band
from nadi.validation.questions import Question as ValidationQuestion
from nadi.workload import algorithms_of

_SHOWN_SCALES = 3  # number of group sizes without --all: one host, two, and all
_CHANNELS = re.compile(r"([0-9]+) channels")
_MAX_HOSTS = 1 << 16


class _Scale(NamedTuple):
    """A group of GPUs."""

    members: Int64  # int64[n], NPUs
    hosts: int


def expect(question: Question, tell: Callable[[str], None] = lambda _: None) -> Expectation:
    """Return what nccl-tests should show on a cluster.

    Args:
        question: The cluster, and the collectives, sizes and hosts that the user asks about.
        tell: A function that takes what is being computed, for a display of progress.

    Raises:
        ConfigError, TopologyError, WorkloadError: The question is wrong; the message is one line.
    """
    fabric, notes = _fabric(question)
    graph = fabric.graph
    command = question.command
    kinds = _kinds(question)
    scales = [_of_command(graph, question)] if command else list(_scales(graph, question))
    nccl = dict(command.nccl) if command else {}
    rows, counts = [], []
    follows_hash, follows_loads = is_hashed(graph, fabric.settings), is_oversubscribed(graph)
    for scale in scales:
        group = Group(fabric, scale.members, nccl)
        path_times = _Paths(group, hashed=follows_hash, loads=follows_loads)
        for kind in kinds:
            for asked_bytes in _sizes(kind, question):
                size_bytes, count = command.size_and_count(asked_bytes, graph_ranks(scale)) if command else (asked_bytes, 0)
                if size_bytes == 0:
                    notes.append(f"{asked_bytes} B are no whole element for each rank, which nccl-tests rounds to 0")
                    continue
                tell(f"{kind} of {size_bytes:,} B on {scale.hosts} hosts")
                rows.append(_row(group, scale, kind, size_bytes, path_times))
                counts.append(count)
    rows_counts = sorted(zip(rows, counts, strict=True), key=lambda pair: kinds.index(pair[0].kind))
    if command and command.not_modelled:
        notes.append(f"not modelled: {', '.join(command.not_modelled)}")
    return Expectation(
        cluster=question.cluster,
        gpus=graph.npus,
        hosts=len(np.unique(graph.host)),
        rows=[row for row, _ in rows_counts],
        notes=list(dict.fromkeys(notes)),
        command=command,
        counts=[count for _, count in rows_counts] if command else (),
    )


def graph_ranks(scale: _Scale) -> int:
    """Return the number of ranks of a group: one for each GPU."""
    return len(scale.members)


def _fabric(question: Question) -> tuple[TimedFabric, list[str]]:
    """Return the idle fabric of a question, and what there is to say about it."""
    config = collective_config(_specification(question), question.overrides)
    fabric = Resolver(config, force=False).idle_fabric(seed=1)
    if fabric.graph.npus < 2:
        raise ConfigError(f"{question.cluster}: found one GPU; expected two or more, between which nccl-tests sends")
    return fabric, list(fabric.warnings)


def _specification(question: Question) -> str:
    """Return the topology's specification: a machine without `npus` has as many as its hosts hold."""
    name, _, rest = question.cluster.strip().partition(":")
    keys = {part.partition("=")[0].strip() for part in rest.split(",")}
    if clusters.is_cluster(name) and "npus" not in keys:
        return question.cluster
    hosts = question.hosts or (question.command.hosts() if question.command else 0) or 1
    if "npus" not in keys and name in _machine_gpus():
        gpus = _machine_gpus()[name] * hosts
        if gpus > MAX_NPUS:
            raise ConfigError(f"--hosts {hosts}: found {gpus:,} GPUs; expected at most {MAX_NPUS:,}")
        return f"{name}:{','.join(filter(None, (f'npus={gpus}', rest)))}"
    return question.cluster


def _machine_gpus() -> dict[str, int]:
    """Return the number of GPUs of a host of each named machine."""
    from nadi.inputs import plug_ins

    return {name: 72 if "nvl72" in name else 8 for name in plug_ins.names("machine")}


def _kinds(question: Question) -> Sequence[str]:
    """Return the kinds of collectives of a question."""
    if question.command:
        return (question.command.kind,)
    for kind in question.kinds:
        if kind not in (*KINDS, "gather", "scatter"):
            raise ConfigError(f"--kind {kind}: expected some of {', '.join((*KINDS, 'gather', 'scatter'))}")
    return tuple(dict.fromkeys(question.kinds))


def _sizes(kind: str, question: Question) -> Sequence[int]:
    """Return the sizes in bytes of a kind, ascending."""
    if question.command:
        return sorted(question.command.asked_bytes)
    return sorted(sizes_of(kind, question.sizes or (ALL_SIZES if question.all_rows else SIZES)))


def _scales(graph: topologies.Graph, question: Question) -> Iterator[_Scale]:
    """Yield the groups of the first hosts: powers of two up to all; without --all one host, two, and all of them."""
    number = np.unique(graph.host)
    most = question.hosts or len(number)
    if most > len(number):
        raise ConfigError(f"--hosts {most}: found {len(number)} hosts in {question.cluster}; expected at most as many")
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    if len(counts) > _SHOWN_SCALES and not question.all_rows:
        counts = [*counts[: _SHOWN_SCALES - 1], most]
    for hosts in counts:
        members = np.flatnonzero(np.isin(graph.host, number[:hosts])).astype(np.int64)
        if len(members) > 1:
            yield _Scale(members, hosts)


def _of_command(graph: topologies.Graph, question: Question) -> _Scale:
    """Return the group of a command line: as many GPUs of each of its hosts as it has ranks."""
    command, number = question.command, np.unique(graph.host)
    assert command is not None
    per_host = int(np.bincount(np.searchsorted(number, graph.host)).min())
    named = question.hosts or command.hosts() or 0
    ranks = command.ranks(named or None)
    hosts = named or -(-ranks // per_host)
    found = f"--command: found {ranks:,} ranks on {hosts:,} host{'s' * (hosts > 1)}"
    if hosts > len(number) or ranks > hosts * per_host:
        raise ConfigError(f"{found}; expected at most {len(number):,} hosts of {per_host} GPUs, as {question.cluster} has")
    if ranks % hosts:
        raise ConfigError(f"{found}; expected equally many on each host")
    if ranks < 2:
        raise ConfigError(f"{found}; expected two or more, as with -g {per_host}")
    of_hosts = [np.flatnonzero(graph.host == host)[: ranks // hosts] for host in number[:hosts]]
    return _Scale(np.concatenate(of_hosts).astype(np.int64), hosts)


class _Paths:
    """Times of the links between the hosts of a group, by kind and choice: proportional to the size."""

    def __init__(self, group: Group, *, hashed: bool, loads: bool) -> None:
        """Begin without times; hashed: whether paths are; loads: whether switches may have too little rate upwards."""
        self._group, self._hashed, self._loads = group, hashed, loads
        self._known: dict[tuple[str, str], tuple[int, list[FabricTime]]] = {}

    def of(self, kind: str, size_bytes: int, alone: CollectiveTime) -> list[FabricTime]:
        """Return the times of the busiest link for each draw of paths, one without hashes; [] = they do not matter."""
        if self._group.hosts < 2 or not (self._hashed or self._loads) or alone.program is None:
            return []
        key = kind, alone.choice
        if key not in self._known or size_bytes > 4 * self._known[key][0]:
            self._known[key] = size_bytes, self._follow(size_bytes, alone)
        known_bytes, times = self._known[key]
        return [time._replace(time_ps=time.time_ps * size_bytes / known_bytes) for time in times]

    def _follow(self, size_bytes: int, alone: CollectiveTime) -> list[FabricTime]:
        """Follow the paths of a collective of a size."""
        group = self._group
        assert alone.program is not None
        members = np.arange(int(alone.program.schedules.members[0]))
        program = program_of(alone.program.schedules, 0, size_bytes, members, len(members))
        channels = _CHANNELS.search(alone.choice)
        loads = LinkLoads(group.graph, group.settings, program, group.members, 1)
        # each channel crosses from host to host once, and has a connection of its own
        connections = round(int(channels[1]) * group.hosts / max(1, len(loads.pairs))) if channels else 1
        loads = LinkLoads(group.graph, group.settings, program, group.members, connections)
        if len(loads.pairs) * max(1, connections) > MAX_CONNECTIONS:
            return []
        return list(loads.hashed()) if self._hashed else [loads.even()]


def _row(group: Group, scale: _Scale, kind: str, size_bytes: int, paths: _Paths) -> ExpectedRow:
    """Return a row: the time alone, or that of the fabric's busiest link if it is longer, with its band."""
    alone = group.time(kind, size_bytes)
    before_ps = sum(alone.parts.get(part, 0.0) for part in ("launch", "protocol", LATENCY)) * alone.time_ps
    fabric = paths.of(kind, size_bytes, alone)
    times = [max(alone.time_ps, before_ps + each.time_ps) for each in fabric] or [alone.time_ps]
    time_ps = float(np.median(times))
    source, limit, share = alone.source, *_limit(alone)
    if fabric and time_ps > alone.time_ps:
        typical = min(fabric, key=lambda each: abs(before_ps + each.time_ps - time_ps))
        limit, share = typical.tier, typical.time_ps / time_ps
        source += f", paths of {len(fabric)} hashes" if len(fabric) > 1 else ", loads of links"
    asked = _class_of(group, scale, group.algorithm(kind))
    name = asked.class_name()
    band = ratio_band(name, size_bytes)
    return ExpectedRow(
        kind,
        size_bytes,
        scale.hosts,
        len(scale.members),
        time_ps,
        min(times) * band.low if band else None,
        max(times) * band.high if band else None,
        alone.choice,
        limit,
        share,
        source,
        name,
        band.cases if band else 0,
        band.coverage if band else None,
        len(fabric) if len(fabric) > 1 else 0,
    )


def _limit(alone: CollectiveTime) -> tuple[str, float | None]:
    """Return the part of a time that takes most, and its fraction; "" = the algorithm does not say."""
    if not alone.parts:
        return "", None
    return max(alone.parts.items(), key=lambda part: part[1])


def _class_of(group: Group, scale: _Scale, algorithm: str) -> ValidationQuestion:
    """Return the question in validation: that of the whole fabric with the group's GPUs and hosts."""
    of_fabric = collective_question(group.graph, algorithm)
    _, counts = np.unique(group.graph.host[scale.members], return_counts=True)
    from dataclasses import replace

    return replace(of_fabric, gpus=len(scale.members), domains=len(counts), domain_gpus=int(counts.max()))

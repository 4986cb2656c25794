"""From a question to the rows of its answer: the fabric, the groups of hosts, their times, and bands around them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nadi import topologies
from nadi.configuration.run_file import collective_config
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_NPUS
from nadi.insight.benchmark_logs import SEND_RECEIVE
from nadi.insight.nccl_tests_command import NcclTestsCommand
from nadi.simulation.closed_forms import program_of
from nadi.simulation.resolving import Resolver, TimedFabric
from nadi.studies.expectation.link_loads import (
    MAX_CONNECTIONS,
    FabricTime,
    LinkLoads,
    connections_of,
    is_hashed,
    is_oversubscribed,
    of_program,
    of_shift,
)
from nadi.studies.expectation.rows import ALL_SIZES, KINDS, SIZES, ClusterQuestion, Expectation, ExpectedRow, counted
from nadi.studies.expectation.timing import LATENCY, CollectiveTime, HostGroup
from nadi.topologies.clusters import find
from nadi.topologies.machines import is_machine, machine
from nadi.topologies.registry import spec_with_gpus
from nadi.validation import Question, class_bands, collective_question
from nadi.workload.collectives import choose

_SHOWN_SCALES = 3  # number of group sizes without --all: one host, two, and all
_BEFORE_DATA = ("launch", "protocol", LATENCY)  # parts of a time that no link can hide
_MAX_RATIO = 4  # ratio of sizes up to which the bytes of links are taken to be proportional


class _Scale(NamedTuple):
    """A group of GPUs."""

    members: Int64  # int64[n], NPUs
    hosts: int


def expect(question: ClusterQuestion, tell: Callable[[str], None] = lambda _: None) -> Expectation:
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
    scales = [_of_command(graph, question, command)] if command else list(_scales(graph, question))
    rows, counts = [], []
    is_calibrated = _is_calibrated(question.cluster)
    hashed, loads = is_hashed(graph, fabric.settings), is_oversubscribed(graph)
    for scale in scales:
        follows = (hashed or loads) and scale.hosts > 1
        channels = command.channels if command else (0, 0)
        group = HostGroup(fabric, scale.members, command.nccl if command else {}, channels, follows_links=follows)
        paths = _Paths(group, hashed=hashed, is_calibrated=is_calibrated)
        for kind in kinds:
            for asked_bytes in _sizes(question):
                size_bytes, count = (
                    command.size_and_count(asked_bytes, len(scale.members)) if command else (asked_bytes, 0)
                )
                if size_bytes == 0:
                    notes.append(f"{asked_bytes} B are no whole element for each rank, which nccl-tests rounds to 0")
                    continue
                tell(f"{kind} of {size_bytes:,} B on {counted(scale.hosts, 'host')}")
                rows.append(_row(group, scale, kind, size_bytes, paths))
                counts.append(count)
        if paths.unknown:
            unknown = ", ".join(sorted(paths.unknown))
            notes.append(f"no bands where paths between {scale.hosts:,} hosts are too many to follow: {unknown}")
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


def _fabric(question: ClusterQuestion) -> tuple[TimedFabric, list[str]]:
    """Return the idle fabric of a question, and what there is to say about it."""
    config = collective_config(_specification(question), question.overrides)
    fabric = Resolver(config, force=False).idle_fabric(seed=1)
    if fabric.graph.npus < 2:
        raise ConfigError(f"{question.cluster}: found one GPU; expected two or more, between which nccl-tests sends")
    return fabric, list(fabric.warnings)


def _is_calibrated(cluster: str) -> bool:
    """Return whether a cluster's file has constants of collectives that were fitted to its own measurements."""
    values = topologies.parse_spec(cluster)
    if not topologies.names_cluster(values["name"], values):
        return False
    return bool(find(str(values["name"])).calibration.get("factors"))


def _specification(question: ClusterQuestion) -> str:
    """Return the topology's specification: a machine without `npus` has as many as its hosts hold."""
    values = topologies.parse_spec(question.cluster)
    name = str(values["name"])
    if "npus" in values or topologies.names_cluster(name, values) or not is_machine(name):
        return question.cluster
    hosts = question.hosts or (question.command.hosts() if question.command else 0) or 1
    gpus = machine(name).domain_gpus * hosts
    if gpus > MAX_NPUS:
        raise ConfigError(f"--hosts {hosts}: found {gpus:,} GPUs; expected at most {MAX_NPUS:,}")
    return spec_with_gpus(question.cluster, gpus)


def _kinds(question: ClusterQuestion) -> Sequence[str]:
    """Return the kinds of collectives of a question."""
    if question.command:
        return (question.command.kind,)
    for kind in question.kinds:
        if kind not in (*KINDS, "gather", "scatter"):
            raise ConfigError(f"--kind {kind}: expected some of {', '.join((*KINDS, 'gather', 'scatter'))}")
    return tuple(dict.fromkeys(question.kinds))


def _sizes(question: ClusterQuestion) -> Sequence[int]:
    """Return the sizes in bytes, ascending."""
    if question.command:
        return sorted(question.command.asked_bytes)
    return sorted(question.sizes or (ALL_SIZES if question.all_rows else SIZES))


def _scales(graph: topologies.Graph, question: ClusterQuestion) -> Iterator[_Scale]:
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


def _of_command(graph: topologies.Graph, question: ClusterQuestion, command: NcclTestsCommand) -> _Scale:
    """Return the group of a command line: as many GPUs of each of its hosts as it has ranks."""
    number = np.unique(graph.host)
    per_host = int(np.bincount(np.searchsorted(number, graph.host)).min())
    named = question.hosts or command.hosts() or 0
    ranks = command.ranks(named or None)
    hosts = named or -(-ranks // per_host)
    found = f"--command: found {counted(ranks, 'rank')} on {counted(hosts, 'host')}"
    if hosts > len(number) or ranks > hosts * per_host:
        raise ConfigError(
            f"{found}; expected at most {len(number):,} hosts of {per_host} GPUs, as {question.cluster} has"
        )
    if ranks % hosts:
        raise ConfigError(f"{found}; expected equally many on each host")
    if ranks < 2:
        raise ConfigError(f"{found}; expected two or more, as with -g {per_host}")
    if command.root >= ranks:
        raise ConfigError(f"--command: {command.program} -r {command.root}: expected a root below {ranks}, the ranks")
    of_hosts = [np.flatnonzero(graph.host == host)[: ranks // hosts] for host in number[:hosts]]
    return _Scale(np.concatenate(of_hosts).astype(np.int64), hosts)


class _Paths:
    """Times of the links between the hosts of a group, by kind and choice: proportional to the size."""

    def __init__(self, group: HostGroup, *, hashed: bool, is_calibrated: bool) -> None:
        """Begin without times.

        hashed: whether switches choose paths by hashes; is_calibrated: whether the cluster has a site's own constants.
        """
        self._group, self._hashed, self.is_calibrated = group, hashed, is_calibrated
        self._known: dict[tuple[str, str], tuple[int, list[FabricTime]]] = {}
        self.unknown: set[str] = set()  # kinds of collectives whose paths could not be followed

    def of(self, kind: str, size_bytes: int, alone: CollectiveTime) -> list[FabricTime]:
        """Return the times of the busiest link for each draw of paths, one without hashes; [] = they do not matter."""
        if not self._group.follows_links:
            return []
        key = kind, alone.choice
        if key not in self._known or size_bytes > _MAX_RATIO * self._known[key][0]:
            self._known[key] = size_bytes, self._follow(kind, size_bytes, alone)
        known_bytes, times = self._known[key]
        return [time._replace(time_ps=time.time_ps * size_bytes / known_bytes) for time in times]

    def _follow(self, kind: str, size_bytes: int, alone: CollectiveTime) -> list[FabricTime]:
        """Follow the paths of a collective of a size."""
        group, connections = self._group, 1
        if kind == SEND_RECEIVE:
            relays = dict(choose("all-to-all", group.algorithm(kind)).parameters).get("pxn") is True
            sent = of_shift(group.graph, group.members, size_bytes, relays=relays)
        elif alone.program is None:
            self.unknown.add(kind)
            return []
        else:
            schedules = alone.program.schedules
            members = np.arange(int(schedules.members[0]))
            program = program_of(schedules, 0, size_bytes, members, len(members))
            sent = of_program(group.graph, program, group.members)
            connections = round(connections_of(group.graph, schedules, group.members, len(sent.src)))
        if len(sent.src) * max(1, connections) > MAX_CONNECTIONS:
            self.unknown.add(kind)
            return []
        loads = LinkLoads(group.graph, group.settings, sent, connections)
        return list(loads.hashed()) if self._hashed else [loads.even()]


def _row(group: HostGroup, scale: _Scale, kind: str, size_bytes: int, paths: _Paths) -> ExpectedRow:
    """Return a row: the time alone, or that of the fabric's busiest link if it is longer, with its band."""
    alone = group.time(kind, size_bytes)
    # links between switches that are slower than ports take the place of what ports and channels take of the time
    before_ps = sum(alone.parts.get(part, 0.0) for part in _BEFORE_DATA) * alone.time_ps
    fabric = paths.of(kind, size_bytes, alone)
    times = [max(alone.time_ps, before_ps + each.time_ps if each.tier else 0.0) for each in fabric] or [alone.time_ps]
    time_ps = float(np.median(times))
    parts, source = dict(alone.parts), alone.source
    if max(times) > alone.time_ps:
        source += f", paths of {len(fabric)} hashes" if len(fabric) > 1 else ", loads of links"
    if time_ps > alone.time_ps:
        typical = min(fabric, key=lambda each: abs(before_ps + each.time_ps - time_ps))
        parts = {part: parts[part] * alone.time_ps / time_ps for part in _BEFORE_DATA if part in parts}
        parts[typical.tier] = typical.time_ps / time_ps
    limit, share = max(parts.items(), key=lambda part: part[1]) if parts else ("", None)
    name = _class_of(group, scale, group.algorithm(kind)).class_name()
    bands = class_bands(name)
    # without paths it is not known what switches add
    latency = min(1.0, sum(parts.get(part, 0.0) for part in _BEFORE_DATA))
    band = None if kind in paths.unknown else bands.at(latency, is_calibrated=paths.is_calibrated)
    return ExpectedRow(
        kind=kind,
        bytes=size_bytes,
        hosts=scale.hosts,
        gpus=len(scale.members),
        time_ps=time_ps,
        fastest_ps=min(times) * band.low if band else None,
        slowest_ps=max(times) * band.high if band else None,
        choice=alone.choice,
        limit=limit,
        limit_share=share,
        source=source,
        class_name=name,
        cases=band.cases if band else 0,
        measured=bands.kinds.get(kind, 0),
        coverage=band.coverage if band else None,
        paths=len(fabric) if max(times) > min(times) else 0,
    )


def _class_of(group: HostGroup, scale: _Scale, algorithm: str) -> Question:
    """Return the question in validation: that of the whole fabric with the group's GPUs and hosts."""
    of_fabric = collective_question(group.graph, algorithm)
    _, counts = np.unique(group.graph.host[scale.members], return_counts=True)
    return replace(of_fabric, gpus=len(scale.members), domains=len(counts), domain_gpus=int(counts.max()))

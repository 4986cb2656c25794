"""Conversion of a run file's configuration to inputs of the engine, and checks of this machine's resources.

This module leads from a fabric, a program of traces and [[faults]] to what the engine runs, and from its results back
to the traces. The engine gets an aggregator as a further NPU behind each switch that reduces, and a row for each part
of a message that is divided over NICs. Results name switches and whole rows again. Faults have names of nodes in a run
file, and become the engine's fault schedule for a fabric.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.configuration.machine import FaultSection
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64, Mask
from nadi.partition import TrafficWeights
from nadi.pdes import parallel
from nadi.topologies import SWITCH, Graph, Routing
from nadi.topologies.endpoints import added_to_switches, with_aggregators, with_aggregators_of
from nadi.workload import Exchange, Program, alone
from nadi.workload.kinds import KINDS
from nadi.workload.node_kinds import NOOP, SEND
from nadi.workload.program import divided, extended, joined, switches_of

POINT_TO_POINT, ALL_NPUS, ALL_ELSE = "p2p", "all", "*"
# groups of plans (workload.generators.training.stages.families), of which a plan may lack some
PLAN_GROUPS = ("tp", "cp", "ep", "etp", "pp", "dp", "edp", "model", "embedding", "world")


def engine_inputs(
    graph: Graph, program: Program, owner: NDArray[np.int32] | None = None, *, counts_reducers: bool = True
) -> tuple[Graph, Program, NDArray[np.int32] | None]:
    """Return the inputs of the engine, with aggregators and divided sends; unchanged if there are none.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        owner: int32[nodes], LP of each node; None = one LP.
        counts_reducers: Whether the aggregators' traces are included, which only one of several ranks should do.
    """
    switches = switches_of(program)
    if not switches:
        return graph, divided(program), owner
    if program.npus != graph.npus:
        raise pdes.RunError(f"the program has {program.npus} NPUs, the fabric {graph.npus}; aggregators come after all")
    owners = None if owner is None else with_aggregators_of(owner, graph, switches)
    return with_aggregators(graph, switches), divided(extended(program, is_acting=counts_reducers)), owners


def results_of_traces(results: pdes.Results, graph: Graph, program: Program) -> pdes.Results:
    """Return results by the rows of traces, of which a divided send is one, without aggregators.

    Messages of aggregators are those of their switches; each part of a divided send stays a message.

    Args:
        results: Results of the engine.
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
    """
    results = _without_aggregators(results, graph, program)
    if not program.has_divided_sends:
        return results
    ptr, start_ps, finish_ps = joined(program, results.npu_node_ptr, results.node_start_ps, results.node_finish_ps)
    return replace(results, npu_node_ptr=ptr, node_start_ps=start_ps, node_finish_ps=finish_ps)


def _without_aggregators(results: pdes.Results, graph: Graph, program: Program) -> pdes.Results:
    """Return results without the links and trace rows of aggregators."""
    if len(results.npu_node_ptr) == graph.npus + 1:
        return results
    # aggregators come behind all NPUs, and their links behind all others: cutting the tails removes them
    rows = int(results.npu_node_ptr[graph.npus])
    node = np.concatenate([np.arange(graph.npus), switches_of(program), [-1]])  # of each endpoint; -1 = none
    return replace(
        results,
        npu_node_ptr=results.npu_node_ptr[: graph.npus + 1],
        node_start_ps=results.node_start_ps[:rows],
        node_finish_ps=results.node_finish_ps[:rows],
        flows=_with_nodes(results.flows, node),
        job_bytes=results.job_bytes[: graph.links],
        links={name: column[: graph.links] for name, column in results.links.items()},
        queues=_of_links(results.queues, graph.links),
        samples=_of_links(results.samples, graph.links),
        marks=_of_links(results.marks, graph.links),
        pauses=_of_links(results.pauses, graph.links),
        limits=_with_nodes(_of_links(results.limits, graph.links), node),
    )


def weights_without_aggregators(weights: TrafficWeights, graph: Graph, program: Program) -> TrafficWeights:
    """Return the weights of a fabric from those of the same fabric with aggregators, which count for their switches.

    Args:
        weights: Work of nodes and links of the fabric with aggregators.
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
    """
    switches = switches_of(program)
    return TrafficWeights(added_to_switches(weights.node, graph, switches), weights.link[: graph.links])


def _with_nodes(table: dict[str, NDArray], node_of_end: NDArray[np.int64]) -> dict[str, NDArray]:
    """Return a table whose columns src and dst name nodes of the fabric; node_of_end: int64[endpoints + 1]."""
    return {name: node_of_end[column] if name in {"src", "dst"} else column for name, column in table.items()}


def _of_links(table: dict[str, NDArray], num_links: int) -> dict[str, NDArray]:
    """Return the rows of a table for the first `num_links` links."""
    if not table:
        return table
    keep = table["link"] < num_links
    return {name: column[keep] for name, column in table.items()}


def with_flows(settings: pdes.Settings, program: Program, names: tuple[str, ...]) -> pdes.Settings:
    """Return settings under which the messages of some groups are flows, and all others packets.

    Raises ConfigError: a name is unknown, or another setting does not support it.

    Args:
        settings: The engine's settings of the run (`pdes.Settings`).
        program: Work of all NPUs (`Program`).
        names: Names of groups in the traces, ALL_NPUS for groups without a name, and POINT_TO_POINT; without effect for
            models of the network without packets.
    """
    if not names or not settings.fidelity.model.has_packets:
        return settings
    # a group without a name is that of all NPUs
    groups = [name or ALL_NPUS for name in program.group_names]
    known = dict.fromkeys([POINT_TO_POINT, ALL_NPUS, *PLAN_GROUPS, *groups])
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ConfigError(f'[network] flows: found "{unknown}"; expected some of {", ".join(known)}')
    if settings.beyond_mixed():
        raise ConfigError(
            f"[network] flows: found {', '.join(names)} with {settings.beyond_mixed()}; expected one or the other"
        )
    return replace(settings, flow_groups=np.array([name in names for name in [*groups, POINT_TO_POINT]]))


def with_classes(
    settings: pdes.Settings, program: Program, classes: Mapping[str, int], exchange: Exchange = alone
) -> pdes.Settings:
    """Return settings under which traffic has the data classes of its names.

    The most specific name counts: a group, p2p or kind of collective of a job, the job, a group, p2p or kind of all
    jobs, "*".

    Raises ConfigError: a name is unknown, or kinds of collectives of one group have several classes.

    Args:
        settings: The engine's settings of the run (`pdes.Settings`).
        program: Work of all NPUs (`Program`).
        classes: Data class by name ([network] classes).
        exchange: Exchange of values between ranks, which know different groups.
    """
    if not classes or not settings.has_port_queues:
        return settings
    groups, jobs = [name or ALL_NPUS for name in program.group_names], program.jobs
    names = () if jobs is None else jobs.names
    known = dict.fromkeys(
        [POINT_TO_POINT, ALL_NPUS, *PLAN_GROUPS, *itertools.chain(*exchange(groups)), *KINDS, ALL_ELSE]
    )
    known |= dict.fromkeys([*names, *(f"{job}/{name}" for job in names for name in known)])
    unknown = next((name for name in classes if name not in known), None)
    if unknown is not None:
        expected = ", ".join([name for name in known if "/" not in name])
        raise ConfigError(f'[network] classes: found "{unknown}"; expected some of {expected}')
    others = {POINT_TO_POINT: settings.p2p_class}

    def class_of(job: int, name: str, kind: str = "") -> int:
        own = (f"{names[job]}/{name}", f"{names[job]}/{kind}", names[job]) if 0 <= job < len(names) else ()
        return next((classes[place] for place in (*own, name, kind, ALL_ELSE) if place in classes), others.get(name, 0))

    of_groups = [0] * len(groups) if jobs is None else jobs.of_groups().tolist()
    of_npus = [0] * program.npus if jobs is None else jobs.of_npus().tolist()
    each = {job: class_of(job, POINT_TO_POINT) for job in set(of_npus)}
    kinds = [list(itertools.compress(KINDS, own)) or [""] for own in _kinds_of_groups(program)]
    found = [
        {class_of(job, name, kind): kind for kind in own}
        for job, name, own in zip(of_groups, groups, kinds, strict=True)
    ]
    # a queue pair has one class, and that of a group carries all its collectives
    several = next(((name, own) for name, own in zip(groups, found, strict=True) if len(own) > 1), None)
    for name, own in filter(None, exchange(several)):
        listed = " and ".join(f"{number} of {kind}" for number, kind in sorted(own.items()))
        raise ConfigError(f'[network] classes: found {listed} in the group "{name}"; expected one class of a group')
    return replace(
        settings,
        group_classes=np.array([next(iter(own)) for own in found], np.int64),
        p2p_classes=np.array([each[job] for job in of_npus]),
        named_classes=tuple(sorted({*classes.values(), settings.p2p_class, classes.get(ALL_ELSE, 0)})),
    )


def _slots_of_traces(program: Program) -> tuple[Int64, Int64]:
    """Return the slot of its trace that each slot of an NPU is, and that of each row's group, among all traces."""
    npu = np.repeat(np.arange(program.npus), np.diff(program.slot_ptr))
    of_npus = program.trace_slot_ptr[program.trace_of_npu[npu]] + np.arange(len(npu)) - program.slot_ptr[npu]
    trace = np.repeat(np.arange(len(program.trace_ptr) - 1), np.diff(program.trace_ptr))
    return of_npus, program.trace_slot_ptr[trace] + program.node_group


def _kinds_of_groups(program: Program) -> Mask:
    """Return bool[groups, KINDS], the kinds of collectives that each group of a program has."""
    of_npus, of_rows = _slots_of_traces(program)
    collectives = np.flatnonzero(program.node_collective >= 0)
    of_traces = np.zeros((int(program.trace_slot_ptr[-1]), len(KINDS)), bool)
    of_traces[of_rows[collectives], program.node_collective[collectives]] = True
    found = np.zeros((len(program.group_names), len(KINDS)), bool)
    np.logical_or.at(found, program.slot_group, of_traces[of_npus])
    return found


def of_packets(program: Program, flow_groups: Mask) -> Program:
    """Return a program without the messages that are flows; flow_groups as in pdes.Settings."""
    of_npus, of_rows = _slots_of_traces(program)
    # each slot of a trace, with a group of one of its NPUs
    is_flow = np.zeros(int(program.trace_slot_ptr[-1]) + 1, bool)
    is_flow[of_npus] = flow_groups[program.slot_group]
    # the last entry is False and answers for rows that are no collectives (-1)
    own = is_flow[np.where(program.node_schedule >= 0, of_rows, -1)]
    return program._replace(
        node_schedule=np.where(own, -1, program.node_schedule).astype(np.int32),
        node_kind=np.where((program.node_kind == SEND) & flow_groups[-1], NOOP, program.node_kind).astype(np.int8),
    )


_MAX_NEIGHBOURS = 6  # number of linked nodes that a message lists
_MAX_SUGGESTIONS = 4  # number of similar names that a message lists
_MIN_SIMILARITY = 0.5  # minimum similarity of a suggestion to the text, as difflib measures it
_SEPARATORS = tuple(re.compile(separator) for separator in (" → ", " -> ", " - ", "-"))


class NodeNames:
    """Names of the nodes of one fabric."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def node(self, text: str) -> int:
        """Return the node of a name or number; ValueError suggests similar names if there is no such node.

        Args:
            text: Text of the user.
        """
        node = self._node(text)
        if node is not None:
            return node
        wanted = " ".join(text.split())
        if wanted.isascii() and wanted.isdigit():
            raise ValueError(f"found node {wanted}; expected one of the nodes 0 to {self._graph.nodes - 1}")
        raise ValueError(f"found {wanted!r}, which is not the name of a node; {self._near(wanted)}")

    def stretch(self, text: str) -> tuple[int, int]:
        """Return the first and the last node of "leaf 0 to leaf 7", or twice the node of a name; else ValueError.

        Args:
            text: Text of the user.
        """
        first, word, last = text.partition(" to ")
        if not word or self._node(text) is not None:
            return (self.node(text),) * 2
        return self.node(first), self.node(last)

    def ends(self, text: str) -> tuple[int, int]:
        """Return both nodes of "12-40", "leaf 0 - spine 1" or, as in reports, "leaf 0 → spine 1"; else ValueError.

        Args:
            text: Text of the user.
        """
        places = [match.span() for separator in _SEPARATORS for match in separator.finditer(text)]
        if not places:
            raise ValueError(f'found {text!r}; expected two nodes, as "12-40" or "leaf 0 - spine 1"')
        # names may contain separators, so try each place
        for begin, end in places:
            a, b = self._node(text[:begin]), self._node(text[end:])
            if a is not None and b is not None:
                return a, b
        begin, end = places[0]
        return self.node(text[:begin]), self.node(text[end:])

    @cached_property
    def _node_of(self) -> dict[str, int]:
        """Return the node of each name."""
        # backwards, so that of several nodes with one name the first one is found
        return {self._graph.node_name(node): node for node in reversed(range(self._graph.nodes))}

    @cached_property
    def _names_by_kind(self) -> dict[str, list[str]]:
        """Return the names in the order of their nodes, by kind."""
        names: dict[str, list[str]] = {}
        for node in range(self._graph.nodes):
            name = self._graph.node_name(node)
            names.setdefault(_kind(name), []).append(name)
        return names

    def _node(self, text: str) -> int | None:
        """Return the node with this name or number, None if there is none."""
        name = " ".join(text.split())
        if name in self._node_of:
            return self._node_of[name]
        return int(name) if re.fullmatch("[0-9]{1,9}", name) and int(name) < self._graph.nodes else None

    def _near(self, name: str) -> str:
        """Return a hint: the names of the same kind, else the nearest names, else some name of each kind."""
        same = self._names_by_kind.get(_kind(name), [])
        if same:
            return f"expected one of {same[0]} to {same[-1]}" if len(same) > 1 else f"expected {same[0]}"
        # compare kinds, as numbers make all names similar
        like = difflib.get_close_matches(_kind(name), self._names_by_kind, n=_MAX_SUGGESTIONS, cutoff=_MIN_SIMILARITY)
        number = name.rpartition(" ")[2]
        alike = {kind: f"{kind} {number}" for kind in like}
        near = [name if name in self._node_of else self._names_by_kind[kind][0] for kind, name in alike.items()]
        every = [names[0] for names in self._names_by_kind.values()][:_MAX_SUGGESTIONS]
        return f"nearest: {', '.join(near)}" if near else f"expected a name like {', '.join(every)}"


def _kind(name: str) -> str:
    """Return the kind of a node's name, "leaf" for "leaf 2"; a name without a number is a kind of its own."""
    word, _, number = name.rpartition(" ")
    return word if word and number.isdigit() else name


def schedule(
    faults: Sequence[FaultSection],
    detection_time_ps: int,
    graph: Graph,
    *,
    cut_through: bool,
    circuits: parallel.Circuits,
) -> pdes.Faults:
    """Return the engine's fault schedule with the routings that it needs.

    The function refuses nodes and links that the fabric lacks, overlapping changes, and faults that the fabric or its
    switches do not support.

    Args:
        faults: Sections [[faults]] of the run file.
        detection_time_ps: Time in ps from when links go down or come up until routes change.
        graph: The fabric (`Graph`).
        cut_through: Whether the switches cut through.
        circuits: Circuits of optical switches, which are among the links of the fabric.
    """
    links, npus, storms = [], [], []
    names = NodeNames(graph)
    reserved: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for number, fault in enumerate(faults):
        where = f"[faults.{number}]"
        place = _FaultPlace(graph, names, fault, where)
        if fault.npu is not None:
            npu = place.npu()
            _reserve(reserved, fault.what, [npu], (fault.at, fault.until_ps, number))
            if fault.pause_storm:
                storms.append(pdes.PauseStorm(tuple(place.links_to_nics(npu)), fault.at))
                continue
            npus.append(pdes.NpuFault(npu, fault.at, fault.until_ps, float(fault.slowdown or 1)))
            continue
        affected = place.links_of_switch() if fault.switch is not None else place.links()
        if fault.switch is None or fault.state is None:  # a link may be down for several reasons
            _reserve(reserved, fault.what, affected, (fault.at, fault.until_ps, number))
        if fault.state and not graph.routing.goes_around:
            raise ConfigError(
                f"{where} state: {graph.name} is routed by dimensions, with no way around a link that is down; "
                "expected rate, added_latency or error_rate, or a fabric with switches"
            )
        if fault.rate and cut_through:
            raise ConfigError(f"{where} rate: rates do not change where switches cut through; expected another fault")
        links.append(
            pdes.LinkFault(
                tuple(affected),
                fault.at,
                fault.until_ps,
                down=fault.state is not None,
                rate_bps=fault.rate or 0,
                added_latency_ps=fault.added_latency or 0,
                error_rate=fault.error_rate or 0.0,
            )
        )
    found = pdes.Faults(tuple(links), tuple(npus), detection_time_ps, {}, tuple(storms), circuits)
    down_sets = {down for changes in found.route_changes() for _, down in changes if down}
    return replace(found, routings=_routings(graph, down_sets))


def rerouted(faults: pdes.Faults, graph: Graph) -> pdes.Faults:
    """Return the faults with their routings computed anew for another fabric.

    Args:
        faults: Faults of the run.
        graph: Another fabric with the same links, as one that has aggregators, too.
    """
    return replace(faults, routings=_routings(graph, faults.routings)) if faults.routings else faults


def _routings(graph: Graph, down_sets: Collection[frozenset[int]]) -> dict[frozenset[int], Routing]:
    """Return the routing of the fabric without each of these sets of links."""
    return {down: graph.routing.without(graph, down) for down in down_sets}


def check_supported(faults: Sequence[FaultSection], model: pdes.NetworkModel, *, has_pauses: bool) -> None:
    """Refuse faults that the network's model does not support, and pause storms unless links have pauses (PFC).

    Args:
        faults: Sections [[faults]] of the run file.
        model: Model of the network.
        has_pauses: Whether links have pauses.
    """
    if faults and model.refused_faults is None:
        expected = pdes.fidelity.quoted(lambda other: other.refused_faults is not None)
        raise ConfigError(f"[[faults]]: found with a [network] fidelity without faults; expected {expected}")
    for number, fault in enumerate(faults):
        times = {"at": fault.at > 0, "until": fault.until is not None} if fault.npu is None else {}
        # times are keys, too: some models allow faults of the whole run only
        for key in (fault.what, *(key for key, is_given in times.items() if is_given)):
            if reason := (model.refused_faults or {}).get(key):
                takers = pdes.fidelity.quoted(partial(takes_fault, key))
                raise ConfigError(f"[faults.{number}] {key}: {reason}, or [network] fidelity = {takers}")
        if fault.pause_storm and not has_pauses:
            raise ConfigError(
                f"[faults.{number}] pause_storm: nothing pauses links here; expected [network] pfc = true and "
                'switch = "shared-buffer"'
            )


def takes_fault(key: str, model: pdes.NetworkModel) -> bool:
    """Return whether a model of the network takes faults with a key of [[faults]].

    Args:
        key: The key.
        model: The model of the network.
    """
    return model.refused_faults is not None and key not in model.refused_faults


class _FaultPlace:
    """NPU or links of a fault; every method raises ConfigError if the fabric has no such NPU, switch or link."""

    def __init__(self, graph: Graph, names: NodeNames, fault: FaultSection, place: str) -> None:
        """Keep the inputs; `place` is the fault's section in the run file, for messages, as "[faults.0]"."""
        self._graph, self._names, self._fault, self._where = graph, names, fault, place

    def npu(self) -> int:
        """Return the NPU."""
        npu = self._nodes("npu")[0]
        if not 0 <= npu < self._graph.npus:
            raise ConfigError(
                f"{self._where} npu: found {self._fault.npu}; expected one of the NPUs 0 to {self._graph.npus - 1}"
            )
        return npu

    def links_to_nics(self, npu: int) -> list[int]:
        """Return the links to an NPU from switches other than NVSwitches.

        Args:
            npu: Number of the NPU.
        """
        graph = self._graph
        links = np.flatnonzero((graph.link_dst == npu) & (graph.node_kind[graph.link_src] == SWITCH)).tolist()
        if not links:
            raise ConfigError(f"{self._where} npu: npu {npu} is not linked to a switch; expected one that is")
        return links

    def links_of_switch(self) -> list[int]:
        """Return both directions of all links of a switch, or of all switches from one to another."""
        graph, (begin, end) = self._graph, self._nodes("switch")
        if not graph.npus <= begin <= end < graph.nodes:
            found = f"{self._where} switch: found {self._fault.switch}"
            if graph.nodes == graph.npus:
                raise ConfigError(f"{found}, but {graph.name} has no switches")
            first, last = graph.node_name(graph.npus), graph.node_name(graph.nodes - 1)
            raise ConfigError(
                f"{found}; expected a switch, as {first!r} or {last!r}, or its node, {graph.npus} to {graph.nodes - 1}"
            )
        own = [(begin <= ends) & (ends <= end) for ends in (graph.link_src, graph.link_dst)]
        return np.flatnonzero(own[0] | own[1]).tolist()

    def links(self) -> list[int]:
        """Return both directions of the cables that the fault names."""
        graph, link = self._graph, self._fault.link
        if not isinstance(link, str):
            if link is None or not 0 <= link < graph.links:
                raise ConfigError(f"{self._where} link: found {link}; expected one of the links 0 to {graph.links - 1}")
            # both directions of a cable have neighbouring numbers
            return [link & ~1, link | 1]
        try:
            a, b = self._names.ends(link)
        except ValueError as error:
            raise ConfigError(f"{self._where} link: {error}") from None
        # all cables between two nodes, unless the fault names one
        links = np.flatnonzero((graph.link_src == a) & (graph.link_dst == b))
        if not len(links):
            near = sorted(set(graph.link_dst[graph.out_links(a)].tolist()))[:_MAX_NEIGHBOURS]
            raise ConfigError(
                f"{self._where} link: {graph.node_name(a)} and {graph.node_name(b)} are not linked; "
                f"nodes next to {a}: {', '.join(f'{node} ({graph.node_name(node)})' for node in near)}"
            )
        cable = self._fault.cable
        if cable is not None:
            if not 0 <= cable < len(links):
                raise ConfigError(f"{self._where} cable: found {cable}; expected 0 to {len(links) - 1}")
            links = links[[cable]]
        return sorted([*links.tolist(), *(links ^ 1).tolist()])

    def _nodes(self, key: str) -> tuple[int, int]:
        """Return the first and the last node that the fault names under a key; one NPU at a time."""
        node = getattr(self._fault, key)
        if isinstance(node, int):
            return node, node
        try:
            return self._names.stretch(node) if key == "switch" else (self._names.node(node),) * 2
        except ValueError as error:
            raise ConfigError(f"{self._where} {key}: {error}") from None


def _reserve(
    reserved: dict[tuple[str, int], list[tuple[int, int, int]]],
    changed_property: str,
    links_or_npus: Sequence[int],
    own_times: tuple[int, int, int],
) -> None:
    """Record by (property, link or NPU) that a fault changes it: begin, end and number; refuse overlaps with others."""
    own_begin, own_end, number = own_times
    for place in links_or_npus:
        own = reserved.setdefault((changed_property, place), [])
        for begin, end, other in own:
            # times from `begin` to before `end`: a fault may begin at the moment when another one ends
            if other != number and own_begin < end and begin < own_end:
                raise ConfigError(
                    f"[faults.{number}] {changed_property}: overlaps with [faults.{other}], which changes the same "
                    "property of the same NPU or link; expected one to end before the other begins"
                )
        own.append(own_times)


def with_slow_links(graph: Graph, faults: pdes.Faults) -> Graph:
    """Return the fabric with the rates and delays that link faults leave; the fabric itself if no links have faults.

    If a switch may send over several equal links, packet hashes choose one of them, and a collective waits for the
    slowest of its messages. Closed forms use one path between two NPUs, so all links of such a set become as slow as
    the slowest of them, in both directions.

    `faults`: Fault schedule of a run; its link faults hold for the whole run and change rates or delays only.

    Args:
        graph: The fabric (`Graph`).
        faults: Fault schedule of a run; its link faults hold for the whole run and change rates or delays only.
    """
    if not faults.links:
        return graph
    rate_bps, delay_ps = graph.link_rate_bps.copy(), graph.link_delay_ps.copy()
    is_slow = np.zeros(graph.links, np.bool_)
    for fault in faults.links:
        links = list(fault.links)
        is_slow[links] = True
        if fault.rate_bps:
            rate_bps[links] = fault.rate_bps
        delay_ps[links] += fault.added_latency_ps
    set_ptr, set_link = graph.routing.set_ptr, graph.routing.set_link
    # int64[entries of set_link], the port set of each: a link may be in several sets, for different homes
    set_of_link = np.repeat(np.arange(len(set_ptr) - 1), np.diff(set_ptr))
    for number in np.unique(set_of_link[is_slow[set_link]]).tolist():
        equal = set_link[set_ptr[number] : set_ptr[number + 1]]
        # both directions of the cables
        for side in (equal, equal ^ 1):
            rate_bps[side] = rate_bps[side].min()
            delay_ps[side] = delay_ps[side].max()
    return graph.with_slow_links(rate_bps, delay_ps)

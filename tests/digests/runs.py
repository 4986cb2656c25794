"""Tiny runs that together reach all of the engine: each network model, control, rule, fault, lane and end of a message.

Each is a function without arguments that gives what it brought (Brought). What two runs share is made once.
"""

import re
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from nadi import pdes, workload
from nadi.configuration.sections import NetworkSection
from nadi.et import NodeType, mem_node
from nadi.pdes.network import detours
from nadi.pdes.wire import TierSwitch
from nadi.simulation.assembly import engine_inputs
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.mixed_fidelity import coupled_collectives
from nadi.simulation.network_settings import network_settings
from nadi.topologies import build
from nadi.workload.program.durations import RemoteMemory
from tests.closed_forms import at_closed_forms
from tests.fabric import scenarios as fabric_scenarios
from tests.fabric.cases import Network
from tests.fabric.test_scenarios_waits import load, ring
from tests.failures.common import cable, faults_of, of_switch
from tests.jobs.common import job, program_of, run as run_jobs
from tests.optical import common as of_light, test_phases as followed
from tests.parallel import matrix
from tests.parallel.fingerprint import hashed, outcome
from tests.pdes.cases import BASE, Traces

LEAVES = "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns"
WIDE = "leaf-spine:leaves=2,hosts_per_leaf=4,spines=3,rate=100Gbps,delay=500ns"
SHARED_LEAVES = "rail-fat-tree:npus=16,gpus_per_host=4,rails=1,hosts_per_unit=2,spines=2,rate=100Gbps"
SERVERS = "rail-fat-tree:npus=8,gpus_per_host=2,hosts_per_unit=2,spines=2"
PLANES = "multi-plane:npus=8,planes=4,nics_per_leaf=4,spines=3,rate=400Gbps,delay=500ns"
RAILS = "rail-optimised:npus=8,gpus_per_host=4,hosts_per_rail_leaf=1,spines=2,rate=100Gbps"
LOSSY = {"queue_limit_bytes": 1300, "rto_ps": 9_000_000, "max_retries": 1000}
US = 10**6
OF_SHARED_DATA = {"matrix, symbolic"}
"""Runs of traces of other projects, which not every checkout has."""
SETTLED = {"window_packets", "rto_ps", "cell_ps"}


class Brought(NamedTuple):
    """What a run brought: its results, or how it failed."""

    results: object = None
    failure: str = ""

    def row(self):
        """What is recorded. `all` is a name of everything that results hold; of a failure its numbers, in order."""
        if self.results is None:
            return {"failure": " ".join(re.findall(r"\d+", self.failure))}
        found = self.results
        more = {name: found.settled[name] for name in SETTLED & found.settled.keys()} | {
            f"{part} {name}": hashed(values)
            for part in ("queues", "pauses")
            for name, values in getattr(found, part).items()
        }
        return {
            "digest": found.digest,
            "packet_hops": found.counters["packet_hops"],
            "events": found.counters["events"],
            "finish_ps": int(found.finish_time_ps),
            "all": hashed_words(outcome(found) | more),
        }


def hashed_words(values):
    """A short name of a dictionary of plain values."""
    return hashed(np.frombuffer(repr(sorted(values.items())).encode(), np.uint8))


def packets(graph, program, settings, owner=None, threads=1):
    try:
        return Brought(pdes.run(pdes.build_world(graph, program, settings, owner), threads=threads))
    except pdes.RunError as error:
        return Brought(failure=str(error))


def chosen(**settings):
    return pdes.Settings(**(BASE | settings))


# Cases of the matrix, alone and divided


def of_matrix(name):
    return Brought(matrix.serial(name))


def divided(name, method="blocks", parts=3, threads=1):
    owner = matrix.owner_of(name, method, parts)
    return Brought(matrix.in_threads(name, owner, threads))


def forked(name):
    return Brought(matrix.in_processes(name, matrix.owner_of(name, "blocks", 2), 2))


# Congestion controls, switches, balancing


def incasts(bytes_each=60_000):
    """Two incasts of different length and an all-to-all beside them."""
    traces = Traces(8)
    for turn in range(2):
        for src in (1, 2, 4, 5, 6):
            traces.message(src, 0, bytes_each, turn)
        traces.message(7, 3, bytes_each // 2, turn)
    traces.collective(range(8), 6, 40_000)
    return traces.program()


PAUSING = {"buffer_bytes": 220_000, "pfc_alpha": 1.0, "ecn_kmin_bytes": 1000, "ecn_kmax_bytes": 8000}
LANES = pdes.wire.CreditSwitch(virtual_lanes=4, lane_buffer_bytes=2500, lane_weights=(1, 20, 40, 80), high_lanes=1)
RISING = pdes.wire.CreditSwitch(virtual_lanes=8, lane_buffer_bytes=2500)
DROPPING = {"buffer_bytes": 12_000, "pfc": False, "pfc_alpha": 0.5}
DROPPING |= {"ecn_kmin_bytes": 500, "ecn_kmax_bytes": 2000, "ecn_pmax": 0.5}
CONTROLS = {
    "dcqcn": ("dcqcn", {}),
    "dcqcn, fast timers": (
        "dcqcn",
        {"rp_timer_ps": 3e5, "byte_counter_bytes": 2000, "fast_recovery_times": 1, "clamp_target_rate": 1,
         "rate_decrease_interval_ps": 0},
    ),
    "dcqcn, by bytes": ("dcqcn", {"rp_timer_ps": 0, "byte_counter_bytes": 3000}),
    "dctcp": ("dctcp", {}),
    "hpcc": ("hpcc", {}),
    "hpcc, one stage, a least rate": ("hpcc", {"max_stage": 0, "min_rate_bps": 3e10, "rate_ai_bps": 1e8}),
    "nscc": ("nscc", {}),
    "nscc, quick to adapt": ("nscc", {"qa_threshold_targets": 0.1, "qa_gate": 1.0, "target_qdelay_rtts": 0.3}),
    "swift": ("swift", {}),
    "swift, no flow scaling": ("swift", {"fs_range_ps": 0, "base_target_ps": 4e5, "initial_cwnd_packets": 2}),
    "swift, windows below one": (
        "swift",
        {"base_target_ps": 1e4, "max_mdf": 0.9, "ai_packets": 0.01, "fs_range_ps": 0, "min_cwnd_packets": 0.2},
    ),
    "swift, resets": (
        "swift",
        {"retx_reset_threshold": 1, "initial_cwnd_packets": 0.5, "max_mdf": 0.1, "beta": 0.9},
    ),
    "timely": ("timely", {"t_low_ps": 6e6, "t_high_ps": 9e6}),
    "timely, from the first packet": ("timely", {"t_low_ps": 1e5, "t_high_ps": 4e6, "hai_events": 1}),
}  # fmt: skip


def controlled(control, switch, graph=None, **settings):
    name, values = CONTROLS[control]
    own = {"cnp_interval_ps": 1_000_000, "window_bytes": 24_000} | settings
    return packets(
        graph or build(WIDE),
        incasts(),
        chosen(switch=pdes.SharedBuffer(**switch), congestion_control=pdes.congestion.control(name, values), **own),
    )


def uneven_uplinks():
    """Two leaves of four NPUs; of their three uplinks to each of two spines none is like another."""
    cables = [(npu, 8 + npu // 4, 100, 500_000) for npu in range(8)]
    for leaf in (8, 9):
        for spine in (10, 11):
            cables += [(leaf, spine, rate, 300_000 + 70_000 * spine) for rate in (25, 100, 400)]
    return Network(8, (40_000,) * 4, tuple(cables)).graph()


RESENT = {"rto_ps": 60 * US, "max_retries": 1000}


def switched(program=None, spec=WIDE, switch=None, **settings):
    shared = None if "credits" in settings else pdes.SharedBuffer(**(PAUSING | (switch or {})))
    return packets(build(spec), program or incasts(30_000), chosen(switch=shared, **settings))


def balanced(rule, *, shared=False, graph=None, **settings):
    program = workload.collective_program("all-to-all", 8, 100_000)
    graph = graph or build(RAILS if rule == "rail" else WIDE)
    own = {"load_balancing": pdes.balancing.balancing(rule), "flowlet_gap_ps": 300_000, "seed": 9} | settings
    if shared:
        own["switch"] = pdes.SharedBuffer(**PAUSING)
    return packets(graph, program, chosen(**own))


def locked():
    """A circle of pauses."""
    graph = ring(5)
    switch = fabric_scenarios.buffer_of(graph, 4 * 4178, pfc_alpha=1.0)
    own = {"load_balancing": pdes.balancing.balancing("static"), "switch": switch, "window_bytes": 2_000_000}
    return packets(graph, fabric_scenarios.program(graph.npus, load(graph, 5)), pdes.Settings(**own))


# Faults


WHERE = {
    "uplink": lambda graph: cable(graph, graph.npus, graph.npus + 3),
    "spine": lambda graph: of_switch(graph, graph.npus + 3),
    "npu": lambda graph: of_switch(graph, 1),
    "first": lambda graph: cable(graph, 0, 1),
}


def faulty(where, at_us, until_us=None, *, fault=None, spec=LEAVES, **settings):
    """An all-to-all while links are down, or have other keys of LinkFault."""
    graph = build(spec)
    ends = (at_us * US,) if until_us is None else (at_us * US, until_us * US)
    links = [pdes.LinkFault(WHERE[where](graph), *ends, **(fault or {"down": True}))]
    program = workload.collective_program("all-to-all", graph.npus, 300_000)
    own = {"rto_ps": 20 * US, "max_retries": 1000} | settings
    return packets(graph, program, chosen(faults=faults_of(graph, links, [], detection_ps=2 * US), **own))


def detoured(rule, *, spec="dragonfly:p=2,a=2,h=1,rate=100Gbps", switch=None, is_down=False, **settings):
    """Each NPU sends to one of the next group, and to one of the last, perhaps while a switch of another is down."""
    graph = build(spec)
    # with a switch down, the last group takes no part but as that of detours
    npus = 8 if is_down else graph.npus
    traces = Traces(graph.npus)
    for npu in range(npus):
        for shift in (4, 7):
            traces.message(npu, (npu + shift) % npus, 40_000, 0)
    own = {"routing": detours.detours(rule), "max_retries": 1000, "rto_ps": 20 * US} | SELECTIVE | settings
    if is_down:
        fault = pdes.LinkFault(of_switch(graph, graph.nodes - 1), 3 * US, 9 * US, down=True)
        own["faults"] = faults_of(graph, [fault], [], detection_ps=2 * US)
    if switch:
        own["switch"] = pdes.SharedBuffer(**(PAUSING | switch))
    return packets(graph, traces.program(), chosen(**own))


def optical(name, **more):
    """One of the runs with optical switches, with other settings."""
    graph, program, own = matrix.case(name)[:3]
    return packets(graph, program, replace(own, **more))


def optical_phases():
    """An optical switch that follows phases of the work, and loses what is on its way."""
    section = followed.RINGS | followed.FOLLOWS | {"in_flight": "drop", "drain": "1us"}
    program = followed.reduces([0, 1, 0], skewed=1)
    own = {"rto_ps": 100 * US, "max_retries": 40}
    graph, settings, *_ = of_light.followed(followed.LEAVES.format(followed.NPUS), program, section, **own)
    return packets(graph, program, settings)


def slow_npu():
    traces = Traces(6)
    for npu in range(6):
        traces.collective([npu], 0, 9000, deps={npu: [traces.compute(npu, 4), traces.compute(npu, 2)]})
        traces.compute(npu, 5)
    graph = build(LEAVES)
    npus = [pdes.NpuFault(1, 1 * US, 8 * US, slowdown=1.7), pdes.NpuFault(4, 0, slowdown=3.0)]
    return packets(graph, traces.program(), chosen(faults=faults_of(graph, (), npus)))


# The system layer


def with_priorities(traces):
    """Collectives later in a trace have other priorities than those before."""
    for nodes in traces.nodes:
        collectives = [node for node in nodes if node.type == NodeType.COMM_COLL_NODE]
        for turn, node in enumerate(collectives):
            node.attr.add(name="comm_priority", int32_val=7 * turn % 5)
    return traces


def phased(scheduling, phases=1, splits=5):
    graph = build("torus:sizes=3x3,rate=100Gbps,delay=300ns")
    traces = Traces(9)
    for turn in range(3):
        traces.collective(range(9), 0, 40_000 + 9000 * turn)
    with_priorities(traces)
    how = workload.CollectiveSettings({"all-reduce": f"grid:splits={splits}"})
    program = workload.build_program(
        traces.tables(), range(9), 9, {}, workload.ComputeModel("trace"), how, fabric=graph
    )
    own = chosen(phases_per_dimension=phases, scheduling=scheduling, concurrent_collectives=True)
    return packets(graph, program, own)


def in_flight(scheduling, at_a_time=1, **settings):
    """Groups that overlap, in the same order everywhere; computation beside them."""
    traces = Traces(6)
    groups = {"a": (0, 1, 2, 3, 4, 5), "b": (1, 4, 5), "c": (0, 2, 3, 4)}
    for turn in range(3):
        for name, members in groups.items():
            for npu in members:
                traces.collective([npu], (0, 6, 2)[turn], 5000 + 900 * turn, name)
        for npu in range(6):
            traces.compute(npu, 1 + (npu + turn) % 3)
    own = {"collectives_in_flight": at_a_time, "scheduling": scheduling} | settings
    with_priorities(traces)
    return packets(build(LEAVES), traces.program(groups), chosen(**own))


def slowed():
    """Computation that collectives slow down, any number at a time, some begun before and some after it."""
    traces = Traces(6)
    for turn in range(3):
        before = {npu: [traces.compute(npu, 2 + npu % 2, cpu=True)] for npu in range(6)}
        traces.collective(range(6), 0, 9000, deps=before)
        for npu in range(6):
            traces.compute(npu, 3 + (npu + turn) % 3)
    return packets(build(LEAVES), traces.program(), chosen(compute_slowdown=1.25, concurrent_collectives=True))


def mixed(npus=6):
    return mixture(npus).program()


def mixture(npus=6):
    """Collectives, messages of several sizes, some to an NPU that is not there yet, computation, memory."""
    traces = Traces(npus)
    for kind, size in ((0, 30_000), (7, 9_000), (6, 12_000)):
        traces.collective(range(npus), kind, size)
    for npu in range(npus):
        wait = [traces.compute(npus - 1 - npu, 1 + npu)]
        traces.message(npu, npus - 1 - npu, 900 * npu, npu, ((), wait))
        traces.memory(npu, 2)
    return traces


def orders(scheduling, more=()):
    """Groups that overlap, each NPU in an order of its own, one collective at a time; computation slows down."""
    traces = Traces(6)
    groups = {"a": (0, 1, 2, 3, 4, 5), "b": (1, 4, 5), "c": (0, 2, 3, 4), "d": (0, 5), "e": (1, 2, 3)}
    groups |= dict.fromkeys(more, groups["a"])
    random = np.random.Generator(np.random.PCG64(7))
    for npu in range(6):
        for name in random.permutation(sorted(groups)).tolist():
            if npu in groups[name]:
                traces.collective([npu], 0, 7000, name)
        for micros in (1, 3, 2):
            traces.compute(npu, micros + npu)
    own = chosen(collectives_in_flight=1, compute_slowdown=1.37, scheduling=scheduling, seed=2)
    return packets(build(LEAVES), with_priorities(traces).program(groups), own)


def launches():
    """Launches of NCCL beside computation that collectives slow down."""
    graph = build(RAILS)
    traces = Traces(8)
    for turn in range(3):
        traces.collective(range(8), 0, 30_000 + turn)
        for npu in range(8):
            traces.compute(npu, 9 + (npu + turn) % 3)
    how = workload.CollectiveSettings({"all-reduce": "nccl:algo=ring,proto=ll,channels=2"})
    program = workload.build_program(
        traces.tables(), range(8), 8, {}, workload.ComputeModel("trace"), how, fabric=graph
    )
    return packets(graph, program, chosen(compute_slowdown=1.3, collectives_in_flight=2))


def busy_port(_graph):
    """A collective whose bytes leave after it has all that it waits for: its sender's port has others to send first."""
    traces = Traces(6)
    groups = {"pair": (0, 1), "three": (0, 1, 3)}
    for turn in range(3):
        traces.message(0, 2, 200_000, turn)
        traces.collective(groups["pair"], 6, 2000, "pair")
        traces.collective(groups["three"], 2, 3000, "three")
        traces.message(0, 4, 0, turn)
    return traces.program(groups)


def in_lanes():
    """Computation and memory that wait for their lanes, some of which take no time."""
    traces = Traces(8)
    for npu in range(8):
        for micros in (3, 0, 2, 0, 1):
            traces.compute(npu, micros, cpu=npu % 2 == 1)
            traces.memory(npu, micros)
        last = (len(traces.nodes[npu]) - 1,)
        traces.collective([npu], 0, 5000, deps={npu: last})
        traces.compute(npu, 2, deps=last)
    return traces


def crowd(npus=6, each=60):
    """More collectives at a time than there is room for at first; of one NPU some, and computation that takes none."""
    traces = Traces(npus)
    groups = {"one": (2,), "two": (1, 3), "all but one": tuple(range(1, npus))}
    for turn in range(each):
        name = ["", "one", "two", "all but one"][turn % 4]
        traces.collective(groups.get(name, range(npus)), turn % 9 if turn % 9 != 8 else 0, 700 + turn, name)
        for npu in range(npus):
            after = [traces.compute(npu, 0)] if turn % 5 == 0 else []
            traces.message(npu, (npu + 1 + turn % 3) % npus, 300 * (turn % 4), turn, (after, ()))
    return traces, groups


def crowded(spec=LEAVES, **settings):
    traces, groups = crowd()
    return packets(build(spec), traces.program(groups), chosen(concurrent_collectives=True, **settings))


def crowded_whole(model):
    graph = build(LEAVES)
    return whole(model, lambda _graph: crowd()[0].program(crowd()[1]), settings={"concurrent_collectives": True},
                 spec=graph)  # fmt: skip


def flood(spec=LEAVES, parts=1, **settings):
    """Queues longer than there is room for at first."""
    graph = build(spec)
    traces = Traces(graph.npus)
    for turn in range(12):
        for src in range(1, graph.npus):
            traces.message(src, 0, 120_000, turn)
    owner = np.arange(graph.nodes) % parts if parts > 1 else None
    return packets(graph, traces.program(), chosen(window_bytes=1 << 22, **settings), owner)


def remote():
    """Loads and stores of remote memory beside local ones."""
    traces = Traces(4)
    for npu in range(4):
        for turn in range(3):
            kind = NodeType.MEM_LOAD_NODE if turn % 2 else NodeType.MEM_STORE_NODE
            traces.nodes[npu].append(mem_node(traces._id(npu), "r", kind, 1000 * (1 + turn), tensor_loc=1))
            traces.memory(npu, 1)
        traces.collective([npu], 0, 9000)
    compute = workload.ComputeModel("trace", remote=RemoteMemory(latency_ps=2 * US, bandwidth_Bps=1e9))
    program = workload.build_program(traces.tables(), range(4), 4, {}, compute)
    return packets(build("ring:npus=4,rate=100Gbps,delay=1us"), program, chosen())


def at_ends(*, graph=None, program=None, settings=None, **ends):
    model = pdes.fidelity.fidelity("packet", **ends)
    graph = graph or build(LEAVES)
    own = chosen(fidelity=model, seed=4, **(settings or {}))
    return packets(graph, program or mixed(graph.npus), own)


def overlapping(npus=8):
    """All-reduces of groups that overlap, by trees and rings."""
    traces = Traces(npus)
    groups = {"low": (0, 1, 2), "odd": (1, 3, 5, 7), "all but two": (0, 1, 2, 4, 5, 7)}
    for turn, name in enumerate(("odd", "low", "all but two", "", "low")):
        traces.collective(groups.get(name, range(npus)), 0, 20_000 + turn, name)
    return traces.program(groups, workload.CollectiveSettings({"all-reduce": "double-binary-tree"}))


SELECTIVE = {"selective_repeat": True, "reorder_packets": 3}
CREDITED = {"switch": DROPPING | {"trimming": True}, "receiver_credits": True, "delivery": "rud"}
UNORDERED = {"selective_repeat": True, "reorder_packets": 0}


# Models of the network without packets


def whole(model, program=None, spec=LEAVES, settings=None, **parameters):
    graph = build(spec) if isinstance(spec, str) else spec
    own = chosen(fidelity=pdes.fidelity.fidelity(model, **parameters), **(settings or {}))
    return Brought(pdes.run(pdes.build_world(graph, program(graph) if program else mixed(graph.npus), own)))


def nccl_of(graph):
    """Rings of channels at a share of NVLink, and over NICs."""
    traces = Traces(graph.npus)
    groups = {"near": (0, 1, 2, 3), "also": (4, 5, 6, 7)}
    for name, members in groups.items():
        traces.collective(members, 0, 300_000, name)
    traces.collective(range(graph.npus), 0, 100_000)
    how = workload.CollectiveSettings({"all-reduce": "nccl:algo=ring,proto=simple,channels=3"})
    npus = range(graph.npus)
    return workload.build_program(
        traces.tables(), npus, graph.npus, groups, workload.ComputeModel("trace"), how, fabric=graph
    )


def coupled(rule="ecmp"):
    graph = build(RAILS)
    program = nccl_of(graph)
    own = chosen(
        fidelity=pdes.fidelity.fidelity("flow"), load_balancing=pdes.balancing.balancing(rule), compute_slowdown=1.5
    )
    how = workload.CollectiveSettings({"all-reduce": "nccl:algo=ring,proto=simple,channels=3"})
    kinds = coupled_collectives(program, CollectiveCosts(graph, own), how)
    return Brought(pdes.run(pdes.build_world(graph, program, replace(own, coupled=kinds))))


def phases_of(graph):
    return workload.collective_program("all-reduce", graph.npus, 90_000, "grid:splits=4", graph)


def closed(traces, spec=RAILS, algorithms=None, groups=None, **settings):
    graph, npus = build(spec), len(traces.nodes)
    how = workload.CollectiveSettings(algorithms or {})
    tables, named = traces.tables(), groups or getattr(traces, "groups", {})
    made = workload.build_program(tables, range(npus), npus, named, workload.ComputeModel("trace"), how, fabric=graph)
    own = replace(network_settings(NetworkSection(fidelity="closed-form")), **settings)
    return Brought(at_closed_forms(graph, made, own, how)[1])


def step():
    """A pipeline of two stages of four, two micro-batches, and a sum over the stages at the end."""
    traces = Traces(8)
    traces.groups = {"first": (0, 1, 2, 3), "second": (4, 5, 6, 7)} | {f"pair{n}": (n, n + 4) for n in range(4)}
    last = [()] * 8
    for micro in range(2):
        for stage, name in enumerate(("first", "second")):
            for npu in traces.groups[name]:
                if stage:
                    last[npu] = (*last[npu], traces.receive(npu - 4, npu, 6000, micro))
                last[npu] = (traces.compute(npu, 3, deps=last[npu]),)
            traces.collective(traces.groups[name], 0, 40_000, name, dict(enumerate(last)))
            for npu in traces.groups[name]:
                last[npu] = (len(traces.nodes[npu]) - 1,)
                if not stage:
                    traces.send(npu, npu + 4, 6000, micro, last[npu])
    for npu in range(4):
        traces.collective((npu, npu + 4), 0, 70_000, f"pair{npu}", dict(enumerate(last)))
    return traces


def jobs_of(graph):
    """Two jobs on NPUs that are no neighbours, one of which begins later, and idle NPUs."""
    first = job("first", range(0, graph.npus, 2), size=60_000)
    return program_of(graph, first, job("second", range(graph.npus - 1, 0, -4), 5 * US, 30_000))


def closed_jobs():
    graph = build(RAILS)
    return Brought(run_jobs(graph, jobs_of(graph), {"fidelity": "closed-form"}))


# Failures


def knot():
    """Two NPUs that wait for each other."""
    traces = Traces(6)
    traces.collective(range(6), 0, 9000)
    for npu, peer in ((1, 4), (4, 1)):
        received = traces.receive(peer, npu, 64)
        traces.send(npu, peer, 64, deps=[received])
    return packets(build(LEAVES), traces.program(), chosen())


def algorithm(name, kind="all-reduce", spec=LEAVES, size=20_000, **settings):
    graph = build(spec)
    running = engine_inputs(graph, workload.collective_program(kind, graph.npus, size, name, graph))[:2]
    return packets(*running, chosen(**settings))


def uneven_sizes():
    """An all-to-all whose members send different sizes, some nothing."""
    return workload.uneven_program(np.random.Generator(np.random.PCG64(4)).integers(0, 9, (6, 6)) * 512)


def sharing(spec=RAILS, parts=1, **settings):
    """A run of jobs, perhaps in several LPs."""
    graph = build(spec)
    owner = np.arange(graph.nodes) % parts if parts > 1 else None
    return packets(graph, jobs_of(graph), chosen(**settings), owner)


@cache
def runs():
    """Every run by name."""
    found = {f"matrix, {name}": partial(of_matrix, name) for name in matrix.CASES}
    found |= {
        "rails in three LPs": partial(divided, "rails", "metis"),
        "lossy in two LPs": partial(divided, "lossy", parts=2),
        "cut through in five LPs, two threads": partial(divided, "cut_through", parts=5, threads=2),
        "ties in LPs of one node": partial(divided, "ties", "each node alone"),
        "RoCE in three LPs": partial(divided, "roce"),
        "credits in three LPs": partial(divided, "credits_of_lanes"),
        "detours in three LPs": partial(divided, "detoured"),
        "jobs": sharing,
        "jobs in three LPs": partial(sharing, parts=3),
        "jobs, whole": partial(whole, "analytical", jobs_of, RAILS),
        "jobs, flows": partial(whole, "flow", jobs_of, RAILS),
        "jobs, closed form": closed_jobs,
        "asked in two processes": partial(forked, "asked"),
        "sprayed in two processes": partial(forked, "sprayed"),
    }
    found |= {f"{control}, pauses": partial(controlled, control, PAUSING) for control in CONTROLS}
    for control in ("dcqcn", "dctcp", "hpcc", "nscc", "nscc, quick to adapt", "swift", "timely"):
        trims = control.startswith(("nscc", "hpcc"))
        found[f"{control}, losses{', trimmed' if trims else ''}"] = partial(
            controlled, control, DROPPING | {"trimming": trims}, **RESENT, **(SELECTIVE if trims else {})
        )
    found |= {
        "nscc, losses, by timers": partial(controlled, "nscc", DROPPING, **RESENT),
        "swift, resets, losses": partial(controlled, "swift, resets", DROPPING, **RESENT),
        "hpcc, sprayed over uneven links": partial(
            controlled, "hpcc", PAUSING, uneven_uplinks(), load_balancing=pdes.balancing.balancing("spray"), **UNORDERED
        ),
        "hpcc, sprayed, a window of one packet": partial(
            controlled, "hpcc", PAUSING, uneven_uplinks(), window_bytes=512, mtu_bytes=512
        ),
        "timely, many to many": lambda: packets(
            build("switch:npus=20,rate=100Gbps,delay=500ns"),
            workload.collective_program("all-to-all", 20, 80_000, "direct"),
            chosen(
                congestion_control=pdes.congestion.control("timely", {"t_low_ps": 1e6, "t_high_ps": 2e6}),
                window_bytes=4000,
            ),
        ),
        "strict classes": partial(switched, p2p_class=1, queue_samples=64, logged_pauses=50),
        "weighted classes": partial(switched, switch={"class_weights": (1, 3)}, p2p_class=1),
        **{f"detours, {rule}": partial(detoured, rule) for rule in detours.names() if rule != "source"},
        "detours, queues of lanes": partial(detoured, "ugal-l-vch", credits=RISING),
        "detours, chosen early": partial(detoured, "ugal-l-again", routing_delay_ps=300_000),
        "detours, trimmed": partial(detoured, "valiant", switch=DROPPING | {"trimming": True}),
        "detours, classes that rise": partial(
            detoured, "valiant", switch={"pfc_rising_classes": 3, "buffer_bytes": 400_000, "pfc_alpha": 0.03}
        ),
        "detours with credits": partial(detoured, "par", spec="slim-fly:q=3,p=1", credits=RISING, p2p_class=4),
        "detours, a switch down": partial(detoured, "ugal-l", is_down=True, credits=RISING),
        "strict and weighted classes": partial(switched, switch={"class_weights": (3, 1, 1, 1, 1, 0)}, p2p_class=5),
        "deficits of three classes": partial(
            switched, switch={"discipline": pdes.disciplines.discipline("ets"), "class_weights": (1, 1, 2)}, p2p_class=2
        ),
        "lossless class beside a lossy one": partial(
            switched,
            switch={"pfc_classes": (0,), "buffer_bytes": 180_000, "ecn_by_class": ((4, 0, 2000, 1.0),)},
            p2p_class=4,
            **RESENT,
        ),
        "tiers with and without pauses": partial(
            switched, tiers=(TierSwitch("spine", pfc=False, buffer_bytes=40_000, trimming=True),), **RESENT
        ),
        "tiers that spray, hash and go by queues": partial(
            switched,
            workload.collective_program("all-to-all", 16, 100_000),
            spec="fat-tree:k=4,rate=100Gbps,delay=500ns",
            tiers=(
                TierSwitch("leaf", load_balancing=pdes.balancing.balancing("grades")),
                TierSwitch("spine", load_balancing=pdes.balancing.balancing("spray")),
            ),
            **RESENT,
            **UNORDERED,
        ),
        "credits, four lanes": partial(switched, credits=LANES, p2p_class=2, queue_samples=16),
        "credits, link down": partial(faulty, "uplink", 3, 9, credits=LANES),
        "headroom too small": partial(switched, switch={"pfc_headroom_bytes": 600, "buffer_bytes": 30_000}, **RESENT),
        "shared buffer that drops": partial(switched, switch=DROPPING, window_bytes=4000, **RESENT),
        "shared buffer that trims": partial(
            switched, switch=DROPPING | {"trimming": True}, window_bytes=9000, **RESENT
        ),
        "shared buffer that trims, selective": partial(
            switched, switch=DROPPING | {"trimming": True}, window_bytes=9000, **RESENT, **SELECTIVE
        ),
        "shared buffer that trims by threshold": partial(
            switched,
            switch=DROPPING
            | {"trimming": True, "trim_threshold_bytes": 1500, "trim_last_hop": 1.5, "trim_share": 0.25}
            | {"trimmed_size_bytes": 40},
            window_bytes=9000,
            delivery="rud",
            **RESENT,
            **SELECTIVE,
        ),
        "credits": partial(switched, **CREDITED, **RESENT, **SELECTIVE),
        "credits, oversubscribed": partial(switched, **CREDITED, oversubscription=3.0, **RESENT, **SELECTIVE),
        "credits, dropped grants": partial(
            switched, **CREDITED | {"switch": DROPPING}, queue_limit_bytes=0, **RESENT, **SELECTIVE
        ),
        "nscc, credits": partial(
            controlled,
            "nscc",
            DROPPING | {"trimming": True, "ecn_last_hop": False},
            receiver_credits=True,
            delivery="rud",
            **RESENT,
            **SELECTIVE,
        ),
        "nscc, coalesced acknowledgements": partial(
            controlled,
            "nscc",
            DROPPING | {"trimming": True},
            delivery="rud",
            ack_every_bytes=4000,
            **RESENT,
            **UNORDERED,
        ),
        "credits, coalesced acknowledgements": partial(
            switched, **CREDITED, ack_every_bytes=4000, sleek=True, **RESENT, **SELECTIVE
        ),
        "dcqcn, delayed notifications": partial(controlled, "dcqcn", PAUSING, cnp_delay_ps=3_000_000),
        "nscc, sleek": partial(controlled, "nscc", DROPPING, delivery="rud", sleek=True, **RESENT, **UNORDERED),
        "shared buffer, cut through": partial(switched, cut_through=True, p2p_class=1, queue_samples=16),
        "flits in NVSwitches": partial(algorithm, "nccl:algo=tree,channels=2", spec=RAILS, nvlink_framing=True),
    }
    for rule in sorted(set(pdes.wire.entropy.names()) - {"fixed"}):
        found[f"entropy {rule}, four ports"] = partial(
            controlled,
            "nscc",
            DROPPING | {"trimming": True, "ecn_kmin_bytes": 1000, "ecn_kmax_bytes": 4000},
            build(PLANES),
            entropy=pdes.wire.entropy.entropy_rule(rule),
            paths=16,
            nic_ports="all",
            load_balancing=pdes.balancing.balancing("entropy"),
            delivery="rud",
            ack_every_bytes=0,
            **RESENT,
        )
    found["entropy mixed, hashed with both ends"] = partial(
        controlled,
        "nscc",
        DROPPING,
        entropy=pdes.wire.entropy.entropy_rule("mixed"),
        paths=16,
        delivery="rud",
        **RESENT,
    )
    for rule in pdes.balancing.names():
        out_of_order = UNORDERED if rule in {"spray", "adaptive", "grades"} else {}
        found[f"{rule}, output queues"] = partial(balanced, rule, **out_of_order)
        found[f"{rule}, shared buffers"] = partial(balanced, rule, shared=True, **out_of_order)
    for rule in ("adaptive", "flowlet"):
        for shared in (False, True):
            name = f"{rule}, uneven links{', shared buffers' if shared else ''}"
            out_of_order = UNORDERED if rule == "adaptive" else {}
            found[name] = partial(balanced, rule, graph=uneven_uplinks(), shared=shared, **out_of_order)
    found |= {
        "spray, packets taken for lost too soon": partial(
            balanced, "spray", graph=uneven_uplinks(), selective_repeat=True, reorder_packets=1, rto_ps=3 * US
        ),
        "timeouts that come too soon": partial(switched, window_bytes=9000, rto_ps=2 * US, max_retries=1000),
        "optical rotor, credits": partial(optical, "rotor", credits=LANES),
        "optical rotor, pauses": partial(optical, "rotor", switch=pdes.SharedBuffer(**PAUSING)),
        "optical epochs, credits": partial(optical, "epochs", credits=LANES),
        "optical epochs, pauses, sprayed": partial(
            optical,
            "epochs",
            switch=pdes.SharedBuffer(**PAUSING),
            load_balancing=pdes.balancing.balancing("spray"),
            **UNORDERED,
        ),
        "optical rotor, flows": partial(optical, "rotor", fidelity=pdes.fidelity.fidelity("flow")),
        "optical epochs, flows": partial(optical, "epochs", fidelity=pdes.fidelity.fidelity("flow")),
        "optical phases": optical_phases,
        "link down": partial(faulty, "uplink", 3, 9),
        "link down, selective": partial(faulty, "uplink", 3, 9, **SELECTIVE),
        "link down for good, shared buffers": partial(
            faulty, "uplink", 3, switch=pdes.SharedBuffer(**PAUSING), p2p_class=1
        ),
        "switch down": partial(faulty, "spine", 2, 8),
        "NPU cut off": partial(faulty, "npu", 2, 6),
        "NPU of several ports cut off": partial(faulty, "npu", 2, 6, spec=RAILS),
        "slower link": partial(faulty, "uplink", 2, 9, fault={"rate_bps": 10 * 10**9}),
        "faster link, cut through": partial(
            faulty, "uplink", 2, 9, fault={"rate_bps": 400 * 10**9}, cut_through=True
        ),
        "later link": partial(faulty, "uplink", 2, 6, fault={"added_latency_ps": 3 * US}),
        "link that loses": partial(faulty, "uplink", 1, 15, fault={"error_rate": 0.05}, seed=3),
        "slower link of a torus": partial(
            faulty, "first", 2, 7, fault={"rate_bps": 10**9, "added_latency_ps": US},
            spec="torus:sizes=3x3,rate=100Gbps,delay=300ns",
        ),
        "slow NPUs": slow_npu,
        "phases, first come": partial(phased, "fifo"),
        "phases, last come, two at a time": partial(phased, "lifo", 2),
        "phases, by priority": partial(phased, "priority"),
        "one collective at a time, first come": partial(in_flight, "fifo"),
        "two collectives at a time, last come": partial(in_flight, "lifo", 2),
        "one collective at a time, by priority, rendezvous": partial(in_flight, "priority", rendezvous_bytes=1000),
        "computation that collectives slow down": slowed,
        "each in its own order, last come": partial(orders, "lifo"),
        "each in its own order, by priority": partial(orders, "priority"),
        "each in its own order, many groups": partial(orders, "fifo", "fgh"),
        "each in its own order, many groups, by priority": partial(orders, "priority", "fgh"),
        "launches beside computation": launches,
        "NCCL's trees, rendezvous": partial(
            algorithm, "nccl:algo=tree,proto=simple,channels=2", spec=RAILS, rendezvous_bytes=1000
        ),
        "double binary trees, rendezvous": partial(
            algorithm, "double-binary-tree", size=60_000, rendezvous_bytes=1000
        ),
        "lanes": lambda: packets(build(RAILS), in_lanes().program(), chosen(compute_slowdown=1.5)),
        "phases of several lanes": lambda: packets(
            build("stack:dims=FullyConnected(4)_Switch(3),rates=400Gbps_100Gbps,delays=50ns_800ns"),
            phases_of(build("stack:dims=FullyConnected(4)_Switch(3),rates=400Gbps_100Gbps,delays=50ns_800ns")),
            chosen(phases_per_dimension=1),
        ),
        "crowd": crowded,
        "crowd, rendezvous": partial(crowded, rendezvous_bytes=400),
        "crowd, lossy ring": partial(crowded, "ring:npus=6,rate=100Gbps,delay=500ns", **LOSSY),
        "crowd, ring and shared switch": partial(
            crowded, "stack:dims=Ring(3)_Switch(2),rates=100Gbps_100Gbps,delays=50ns_800ns",
            switch=pdes.SharedBuffer(**PAUSING), p2p_class=1,
        ),
        "flood": flood,
        "flood, cut through": partial(flood, cut_through=True),
        "flood, shared buffers": partial(flood, switch=pdes.SharedBuffer(buffer_bytes=64_000_000, ecn=False)),
        "flood in two LPs": partial(flood, parts=2),
        "flood of a ring in three LPs": partial(flood, "ring:npus=6,rate=100Gbps,delay=500ns", 3),
        "uneven, rendezvous": lambda: packets(build(LEAVES), uneven_sizes(), chosen(rendezvous_bytes=2000)),
        "remote memory": remote,
        "mixed, rendezvous": lambda: packets(build(LEAVES), mixed(), chosen(rendezvous_bytes=1, seed=8)),
        "mixed, rendezvous, selective, losses": lambda: packets(
            build(LEAVES), mixed(), chosen(rendezvous_bytes=2000, **SELECTIVE, **LOSSY)
        ),
        "mixed, one timer, losses": lambda: packets(
            build(LEAVES), mixed(), chosen(queue_limit_bytes=1300, max_retries=1000)
        ),
        "mixed, unrecorded": lambda: packets(
            build(LEAVES), mixed(), chosen(record_nodes=False, record_flows=False)
        ),
        "send latency": partial(at_ends, send_latency_ps=700_000),
        "endpoint delay and reduction": partial(at_ends, endpoint_delay_ps=50_000, reduction_bandwidth_bps=8e12 / 9.0),
        "endpoint delay, selective": partial(
            at_ends, endpoint_delay_ps=50_000, reduction_bandwidth_bps=8e12 / 9.0, settings=SELECTIVE | LOSSY
        ),
        "reduction alone": partial(at_ends, reduction_bandwidth_bps=8e12 / 9.0),
        "reduction of overlapping groups": partial(
            at_ends, graph=build(RAILS), program=overlapping(), reduction_bandwidth_bps=8e12 / 9.0
        ),
        "acknowledged": partial(at_ends, acknowledged=True),
        "acknowledged, flits": partial(
            at_ends, graph=build(RAILS), acknowledged=True, settings={"nvlink_framing": True}
        ),
        "acknowledged, selective, losses": partial(
            at_ends, acknowledged=True, send_latency_ps=300_000, settings=SELECTIVE | LOSSY
        ),
        "acknowledged, cut through": partial(at_ends, acknowledged=True, settings={"cut_through": True}),
        "acknowledged, rendezvous": partial(
            at_ends, acknowledged=True, endpoint_delay_ps=10_000, settings={"rendezvous_bytes": 1000}
        ),
    }  # fmt: skip
    found |= {
        "messages as flows": partial(whole, "flow"),
        "messages as flows, crowd": partial(crowded_whole, "flow"),
        "messages as flows, NCCL": partial(whole, "flow", nccl_of, RAILS),
        "coupled flows": coupled,
        "coupled flows, spray": partial(coupled, "spray"),
    }
    for model in ("congestion_aware", "congestion_unaware"):
        found |= {
            f"{model}": partial(whole, model),
            f"{model}, crowd": partial(crowded_whole, model),
            f"{model}, busy port": partial(whole, model, busy_port, settings={"concurrent_collectives": True}),
            f"{model}, all at one moment": partial(
                whole, model, resolution_ps=10**9, settings={"concurrent_collectives": True}
            ),
            f"{model}, ends": partial(
                whole, model, endpoint_delay_ps=10_000, reduction_bandwidth_bps=8e12 / 3.0, resolution_ps=1000
            ),
            f"{model}, concurrent, torus": partial(
                whole, model, spec="torus:sizes=3x2", settings={"concurrent_collectives": True}
            ),
            f"{model}, shares of NVLink": partial(whole, model, nccl_of, RAILS, {"concurrent_collectives": True}),
            f"{model}, phases": partial(
                whole, model, phases_of, "torus:sizes=3x3", {"phases_per_dimension": 1, "scheduling": "lifo"}
            ),
        }
    found |= {
        "closed form, a step": lambda: closed(step()),
        "closed form, lanes": lambda: closed(in_lanes()),
        "closed form, mixed": lambda: closed(mixture(8)),
        "closed form, mixed, concurrent": lambda: closed(mixture(6), spec=LEAVES, concurrent_collectives=True),
        "closed form, crowd": lambda: closed(crowd()[0], spec=LEAVES, groups=crowd()[1]),
        "closed form, a step, NCCL": lambda: closed(step(), algorithms={"all-reduce": "nccl"}),
        "closed form, concurrent": lambda: closed(step(), concurrent_collectives=True),
        "closed form, leaf-spine": lambda: closed(step(), spec=WIDE),
        "closed form, grid of a torus": lambda: closed(step(), spec="torus:sizes=4x2"),
        "NCCL's shares of NVLink": lambda: packets(build(RAILS), nccl_of(build(RAILS)), pdes.Settings()),
        "messages at a share": lambda: packets(build(RAILS), mixture(8).program(), pdes.Settings(p2p_share=0.4)),
        "NCCL's LL on trees": partial(algorithm, "nccl:algo=tree,proto=ll", spec=RAILS),
        "NCCL's shares under Swift": lambda: packets(
            build(RAILS), nccl_of(build(RAILS)), pdes.Settings(congestion_control=pdes.congestion.control("swift"))
        ),
        "hierarchical": lambda: packets(build(RAILS), workload.hierarchical_program(8, 4, 200_000), pdes.Settings()),
        "uneven all-to-all": lambda: packets(build(LEAVES), uneven_sizes(), chosen()),
        "rails that share leaves": partial(algorithm, "ring", "all-to-all", spec=SHARED_LEAVES),
        "NICs of two ports": partial(algorithm, "ring", "all-to-all", f"{SERVERS},ports=2"),
        "servers that forward": partial(algorithm, "ring", "all-to-all", f"{SERVERS},rail_spines=true,forwarding=true"),
        "direct": partial(algorithm, "direct"),
        "halving and doubling": partial(algorithm, "halving-doubling", spec="switch:npus=8"),
        "Bruck": partial(algorithm, "bruck", "all-gather"),
        "two cables between two nodes": partial(algorithm, "ring", spec="ring:npus=2,rate=100Gbps,delay=0ns"),
        "fully connected": partial(algorithm, "direct", spec="fully-connected:npus=5", cut_through=True),
        "pairs": lambda: packets(
            build("fat-tree:k=4"), workload.pairs_program(np.roll(np.arange(16), 5), 30_000), pdes.Settings()
        ),
        "many small messages": lambda: packets(
            build("switch:npus=24"), workload.collective_program("all-to-all", 24, 48), chosen()
        ),
        "a circle of pauses": locked,
        "two that wait for each other": knot,
        "a queue pair that gives up": lambda: packets(
            build(LEAVES), mixed(), chosen(queue_limit_bytes=300, rto_ps=9 * US)
        ),  # queues below one packet
    }
    return found

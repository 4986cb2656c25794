"""Tiny runs that stand for one thing each, and the ways in which they are divided and run."""

from functools import cache
from typing import NamedTuple

import numpy as np

from nadi import partition
from nadi.et import read_groups
from nadi.pdes import LinkFault, Settings, SharedBuffer, build_world, fidelity, run
from nadi.pdes.network import balancing, detours
from nadi.pdes.nic import congestion
from nadi.pdes.nic.entropy import entropy_rule
from nadi.pdes.parallel import Layout, Processes, run_divided
from nadi.pdes.wire import CreditSwitch
from nadi.simulation.assembly import engine_inputs
from nadi.topologies import build, with_source_routes
from nadi.topologies.endpoints import with_aggregators_of
from nadi.workload import (
    CollectiveSettings,
    ComputeModel,
    build_program,
    collective_program,
    load_traces,
    pairs_program,
)
from nadi.workload.program.jobs import switches_of
from tests.failures.common import cable, faults_of
from tests.needs import SHARED
from tests.optical.common import HELD, optical_fabric
from tests.parallel.fingerprint import fingerprint
from tests.pdes.cases import BASE, Traces

ROTOR_OF_SIX = "leaf-spine:leaves=6,hosts_per_leaf=1,spines=0,rate=100Gbps,delay=500ns"


class Case(NamedTuple):
    """A run; owner: the LP of each node where it is a matter of the case, by name.

    user: the fabric without aggregators and their switches, where that is what is divided.
    """

    graph: object
    program: object
    settings: Settings
    owners: dict
    user: tuple = ()


def packed(owner):
    """LPs numbered without gaps."""
    return np.unique(owner, return_inverse=True)[1]


def settings(**chosen):
    return Settings(**(BASE | chosen))


def lossy():
    """All to all through queues of two packets: drops, negative acknowledgements and timeouts."""
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    program = collective_program("all-to-all", 6, 24_000)
    return Case(graph, program, settings(queue_limit_bytes=1300, rto_ps=9_000_000, max_retries=1000, seed=5), {})


def cut_through():
    """Headers run ahead of their packets, over links of different rates; an LP without NPUs, one with a single NPU."""
    graph = build(
        "fat-tree:pods=3,leaves_per_pod=2,hosts_per_leaf=2,spines_per_pod=2,cores_per_plane=2,"
        "rate=100Gbps,spine_rate=200Gbps,core_rate=77Gbps,delay=200ns,spine_delay=350ns,switch_latency=40ns"
    )
    pod = graph.pod + 1
    pod[5] = 9
    chosen = settings(cut_through=True, queue_limit_bytes=4000, rto_ps=30_000_000, max_retries=1000)
    owners = {"cores alone, an NPU alone": packed(pod)}
    return Case(graph, collective_program("all-to-all", 12, 18_000), chosen, owners)


def ties():
    """Equal senders, equal links, one receiver; each sender is an LP of its own."""
    senders = 5
    traces = Traces(senders + 1)
    for _ in range(6):
        for src in range(senders):
            traces.message(src, senders, 1500)
    graph = build(f"switch:npus={senders + 1},rate=100Gbps,delay=300ns")
    nodes = np.arange(graph.nodes)
    return Case(graph, traces.program(), settings(seed=7), {"each node alone": nodes, "one alone": packed(nodes == 2)})


def torus():
    """Three dimensions, two algorithms after one another."""
    graph = build("torus:sizes=2x3x2,rate=100Gbps,delay=250ns")
    traces = Traces(12)
    for kind in (0, 6):
        traces.collective(range(12), kind, 9000)
    return Case(graph, traces.program(), settings(seed=11), {})


def no_delay():
    """A ring whose links take as long as their smallest packet: cells of some nanoseconds."""
    graph = build("ring:npus=6,rate=100Gbps,delay=0ns")
    return Case(graph, collective_program("all-reduce", 6, 6000), settings(), {"alternating": np.arange(6) % 2})


def rails():
    """Servers with links shorter than the windows."""
    graph = build("rail-optimised:npus=16,gpus_per_host=4,hosts_per_rail_leaf=2,spines=2,rate=100Gbps")
    return Case(graph, collective_program("all-reduce", 16, 60_000), settings(), {})


def stack():
    """Dimensions of different kind, rate and delay."""
    graph = build("stack:dims=Ring(4)_Switch(2),rates=400Gbps_100Gbps,delays=50ns_800ns,switch_latency=30ns")
    return Case(graph, collective_program("all-gather", 8, 16_000), settings(cut_through=True), {})


def concurrent():
    """Collectives of overlapping groups side by side, with computation, memory and messages between them."""
    traces = Traces(8)
    groups = {"a": (0, 2, 4, 6), "b": (1, 2, 5)}
    for turn in range(3):
        first = {npu: [traces.compute(npu, 1 + (npu + turn) % 3)] for npu in range(8)}
        traces.collective(range(8), 0, 5000, deps=first)
        for name, members in groups.items():
            traces.collective(members, 6 if turn % 2 else 0, 4000, name)
        traces.memory(turn, 2)
        traces.message(turn, 7 - turn, 2500, turn)
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=400ns")
    return Case(graph, traces.program(groups), settings(concurrent_collectives=True, queue_limit_bytes=6000), {})


def messages():
    """Chains of messages; every second NPU is idle, and the spines are an LP without NPUs."""
    traces = Traces(8)
    at = None
    for turn in range(8):
        src, dst = 2 * turn % 8, 2 * (turn + 1) % 8
        at = traces.message(src, dst, 700 * turn, turn, ((at,) if at is not None else (), ()))[1]
    graph = build("leaf-spine:leaves=4,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=1us")
    lonely = np.where(np.arange(graph.nodes) >= graph.nodes - 2, 0, 1)
    lonely[3] = 2
    return Case(graph, traces.program(), settings(), {"spines alone, an idle NPU alone": lonely})


def permutation():
    """Some NPUs send for long, the others are idle."""
    graph = build("fat-tree:k=4,rate=100Gbps,delay=500ns")
    to = [5, -1, 9, -1, 13, 2, -1, -1, 1, -1, 3, -1, 6, -1, -1, 10]
    return Case(graph, pairs_program(to, 20_000), settings(window_bytes=2048), {})


def symbolic():
    """A training step of a transformer as STG writes it: data, tensor and pipeline parallel, on servers of two."""
    folder = SHARED / "data" / "chakra" / "dense_dp2tp2pp2"
    roofline = ComputeModel("roofline", peak_flops=312e12, memory_bandwidth_Bps=2.04e12)
    program = build_program(*load_traces(folder / "workload", 8), 8, read_groups(folder / "workload.json"), roofline)
    graph = build("rail-optimised:npus=8,gpus_per_host=2")
    return Case(graph, program, Settings(mtu_bytes=60_000), {})


def roce():
    """Incasts over switches that share small buffers: pauses, marks, notifications, DCQCN, two classes of data."""
    traces = Traces(8)
    for turn in range(3):
        for src in (1, 2, 4, 5, 6):
            traces.message(src, 0, 30_000, turn)
        traces.message(7, 3, 20_000, turn)
    traces.collective(range(8), 0, 40_000)
    graph = build("leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns,switch_latency=50ns")
    buffer = SharedBuffer(
        buffer_bytes=220_000, pfc_alpha=1.0, ecn_kmin_bytes=1000, ecn_kmax_bytes=8000, class_weights=(3, 1)
    )
    chosen = settings(switch=buffer, congestion_control=congestion.control("dcqcn"), p2p_class=1, window_bytes=24_000)
    return Case(graph, traces.program(), chosen, {})


def credits_of_lanes():
    """Incasts over links with credits for few packets: lanes of different weights that wait for buffers."""
    case = roce()
    rules = CreditSwitch(virtual_lanes=4, lane_buffer_bytes=2500, lane_weights=(1, 20, 40, 80), high_lanes=1)
    return case._replace(settings=settings(credits=rules, p2p_class=3, window_bytes=24_000))


def detoured():
    """A dragonfly whose groups send to the next: detours over lanes with credits that rise, and a link that is down."""
    graph = build("dragonfly:p=2,a=2,h=1,rate=100Gbps,delay=50ns,global_delay=500ns")
    traces = Traces(graph.npus)
    for npu in range(graph.npus):
        traces.message(npu, (npu + 4) % graph.npus, 60_000, 0)
        traces.message(npu, (npu + 7) % graph.npus, 9_000, 1)
    between = np.flatnonzero((graph.link_src >= graph.npus) & (graph.link_dst >= graph.npus))
    cable = (int(between[-2]), int(between[-1]))
    chosen = settings(
        routing=detours.detours("ugal-l-again"),
        routing_delay_ps=300_000,
        credits=CreditSwitch(virtual_lanes=5, lane_buffer_bytes=2500),
        faults=faults_of(graph, [LinkFault(cable, 2_000_000, 9_000_000, down=True)], detection_ps=500_000),
        selective_repeat=True,
        reorder_packets=100,
        rto_ps=20_000_000,
        max_retries=100,
        window_bytes=24_000,
    )
    return Case(graph, traces.program(), chosen, {})


def listed():
    """Listed paths, some longer than needed, by turns of entropies, and a link on some of them that is down."""
    graph = build("leaf-spine:leaves=4,hosts_per_leaf=2,spines=3,rate=100Gbps,delay=500ns")
    traces = Traces(graph.npus)
    paths = {}
    leaf, spine = graph.npus + np.arange(4), graph.npus + 4 + np.arange(3)
    for npu in range(graph.npus):
        peer = (npu + 4) % graph.npus
        here, there, beside = leaf[npu // 2], leaf[peer // 2], leaf[(npu // 2 + 1) % 4]
        paths[npu, peer] = [[here, spine[0], there], [here, spine[1], beside, spine[2], there]]
        traces.message(npu, peer, 60_000, 0)
        traces.message(npu, (npu + 3) % graph.npus, 9_000, 1)
    traces.collective(range(graph.npus), 0, 40_000)
    dead = cable(graph, spine[1], leaf[1])
    chosen = settings(
        routing=detours.detours("source"),
        entropy=entropy_rule("bitmap"),
        paths=16,
        faults=faults_of(graph, [LinkFault(dead, 4_000_000, 15_000_000, down=True)], detection_ps=500_000),
        rto_ps=20_000_000,
        max_retries=100,
        window_bytes=24_000,
    )
    return Case(with_source_routes(graph, paths), traces.program(), chosen, {})


def sprayed():
    """Every packet its own way, selective repeat, telemetry and HPCC, switches that trim."""
    graph = build("fat-tree:k=4,rate=100Gbps,delay=500ns")
    buffer = SharedBuffer(buffer_bytes=6_000, pfc=False, pfc_alpha=0.5, trimming=True, ecn=False)
    chosen = settings(
        switch=buffer,
        congestion_control=congestion.control("hpcc"),
        load_balancing=balancing.balancing("spray"),
        selective_repeat=True,
        reorder_packets=0,
        rto_ps=60_000_000,
        max_retries=1000,
        window_bytes=60_000,
    )
    return Case(graph, collective_program("all-to-all", 16, 200_000), chosen, {})


def credited():
    """Receivers give credits, slow them down and coalesce acknowledgements, NSCC counts flight, switches trim."""
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=4,spines=2,rate=100Gbps,delay=500ns")
    buffer = SharedBuffer(
        buffer_bytes=400_000, pfc=False, trimming=True, trim_threshold_bytes=4000, trim_last_hop=1.5, trim_share=0.25,
        trimmed_size_bytes=64, ecn_last_hop=False, ecn_kmin_bytes=1000, ecn_kmax_bytes=3000,
    )  # fmt: skip
    chosen = settings(
        switch=buffer,
        congestion_control=congestion.control("nscc"),
        receiver_credits=True,
        oversubscription=2.0,
        delivery="rud",
        ack_every_bytes=16_384,
        sleek=True,
        load_balancing=balancing.balancing("spray"),
        selective_repeat=True,
        reorder_packets=0,
        rto_ps=60_000_000,
        max_retries=1000,
        window_bytes=60_000,
    )
    return Case(graph, collective_program("all-to-all", 12, 300_000), chosen, {})


def adaptive():
    """Turns and queues of output-queued switches, round-trip times and Swift."""
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=3,spines=3,rate=100Gbps,delay=700ns")
    chosen = settings(
        congestion_control=congestion.control("swift"), load_balancing=balancing.balancing("adaptive"),
        selective_repeat=True,
        reorder_packets=0,
    )  # fmt: skip
    return Case(graph, collective_program("all-to-all", 9, 90_000), chosen, {})


def phases():
    """Splits that take turns in two dimensions, the last that came first."""
    graph = build("torus:sizes=3x3,rate=100Gbps,delay=300ns")
    program = collective_program("all-reduce", 9, 90_000, "grid:splits=4,order=themis", graph)
    return Case(graph, program, settings(phases_per_dimension=1, scheduling="lifo"), {})


def nccl():
    """Channels in orders and on connections of their own, a launch, a protocol's latencies, NVLink's flits."""
    graph = build("rail-optimised:npus=12,gpus_per_host=4,hosts_per_rail_leaf=2,spines=2,rate=100Gbps")
    program = collective_program("all-reduce", 12, 60_000, "nccl:algo=ring,proto=ll,channels=2", graph)
    return Case(graph, program, settings(nvlink_framing=True), {})


def driven():
    """Channels at a share of NVLink, slices, beside others at line rate and over NICs."""
    traces = Traces(8)
    groups = {"near": (0, 1, 2, 3), "also": (4, 5, 6, 7)}
    for name, members in groups.items():
        for kind in (0, 2):
            traces.collective(members, kind, 700_000, name)
    traces.collective(range(8), 0, 50_000)
    for npu in range(4):
        traces.message(npu, npu + 4, 5000 * npu)
    graph = build("rail-optimised:npus=8,gpus_per_host=4,hosts_per_rail_leaf=1,spines=2,rate=100Gbps")
    algorithm = "nccl:algo=ring,proto=simple,channels=3"
    collectives = CollectiveSettings({"all-reduce": algorithm, "all-gather": "nccl:channels=2"})
    program = build_program(traces.tables(), range(8), 8, groups, ComputeModel("trace"), collectives, fabric=graph)
    return Case(graph, program, settings(nvlink_framing=True, concurrent_collectives=True), {})


def nvls():
    """NVLS and its trees as nccl has them: aggregators in NVSwitches, heads that are paced at uneven shares."""
    traces = Traces(9)
    groups = {"near": (3, 4, 5)}
    traces.collective(groups["near"], 0, 40_000, "near")
    traces.collective(range(9), 0, 60_000)
    graph = build("rail-optimised:npus=9,gpus_per_host=3,hosts_per_rail_leaf=1,spines=2,rate=100Gbps")
    collectives = CollectiveSettings({"all-reduce": "nccl:overrides=50KB-/nvls-tree/simple;-/nvls/simple"})
    program = build_program(traces.tables(), range(9), 9, groups, ComputeModel("trace"), collectives, fabric=graph)
    running = engine_inputs(graph, program)[:2]
    return Case(*running, settings(nvlink_framing=True), {}, (graph, switches_of(program)))


def tree():
    """Sends that follow each other."""
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=3,spines=2,rate=100Gbps,delay=300ns")
    return Case(graph, collective_program("all-reduce", 9, 30_000, "double-binary-tree"), settings(), {})


def in_network():
    """Switches that reduce: aggregators of a tree, and queues of two packets."""
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=3,spines=2,rate=100Gbps,delay=300ns")
    program = collective_program("all-reduce", 9, 30_000, "in-network:chunks=5", graph)
    running = engine_inputs(graph, program)[:2]
    return Case(*running, settings(queue_limit_bytes=1300, rto_ps=9_000_000, max_retries=1000), {})


def asked():
    """Messages of several sizes that are asked for, in lanes of several senders, over queues that drop."""
    traces = Traces(6)
    for kind, size in ((0, 30_000), (6, 9_000), (3, 2_000)):
        traces.collective(range(6), kind, size)
    for npu in range(6):
        wait = [traces.compute(5 - npu, 1 + npu)]
        traces.message(npu, 5 - npu, 700 * npu, npu, ((), wait))
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    chosen = settings(rendezvous_bytes=2000, queue_limit_bytes=1300, rto_ps=9_000_000, max_retries=1000, seed=3)
    return Case(graph, traces.program(), chosen, {})


def contended():
    """Collectives of overlapping groups, each NPU in an order of its own, of which one is done at a time; computation
    that they slow down."""
    traces = Traces(6)
    groups = {"a": (0, 1, 2, 3, 4, 5), "b": (1, 4, 5), "c": (0, 2, 3, 4)}
    for npu in range(6):
        order = ["abc", "cab", "bca"][npu % 3]
        for name in order:
            if npu in groups[name]:
                traces.collective([npu], 0, 9000, name)
        for micros in (1, 3, 2):
            traces.compute(npu, micros + npu)
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    chosen = settings(collectives_in_flight=1, compute_slowdown=1.37, scheduling="lifo", seed=2)
    return Case(graph, traces.program(groups), chosen, {})


def one_at_a_time():
    """Collectives of overlapping groups, messages and computation, one at a time; queues that drop."""
    traces = Traces(6)
    groups = {"a": (0, 1, 2, 3, 4, 5), "b": (1, 4, 5), "c": (0, 2, 3, 4)}
    for number in range(3):
        for name, members in groups.items():
            traces.collective(members, number % 2 * 2, 9000 + 1000 * number, name)
        for npu in range(6):
            wait = [traces.compute(npu, 2 + (npu + number) % 3, cpu=npu % 2 == 0)]
            traces.compute(npu, 3)
            traces.memory(npu, 1 + npu)
            traces.message(npu, (npu + 1) % 6, 3000 * npu, number, (wait, ()))
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    lossy = {"queue_limit_bytes": 1300, "rto_ps": 9_000_000, "max_retries": 1000}
    chosen = settings(one_at_a_time=True, concurrent_collectives=True, compute_slowdown=1.5, seed=2, **lossy)
    return Case(graph, traces.program(groups), chosen, {})


def ends():
    """All that passes at the ends of messages, which are asked for or not, over queues that drop."""
    traces = Traces(6)
    for kind, size in ((0, 30_000), (7, 9_000), (6, 12_000)):
        traces.collective(range(6), kind, size)
    for npu in range(6):
        wait = [traces.compute(5 - npu, 1 + npu)]
        traces.message(npu, 5 - npu, 900 * npu, npu, ((), wait))
    graph = build("leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns")
    model = fidelity.fidelity(
        "packet",
        endpoint_delay_ps=10_000,
        reduction_bandwidth_bps=8e12 / 7.0,
        send_latency_ps=600_000,
        acknowledged=True,
    )
    lossy = {"queue_limit_bytes": 1300, "rto_ps": 9_000_000, "max_retries": 1000}
    return Case(graph, traces.program(), settings(fidelity=model, rendezvous_bytes=1500, seed=4, **lossy), {})


def rotor():
    """Packets that an optical switch holds at their leaf until the one matching of five that joins it to another."""
    section = {"ports": "leaf", "rate": "100Gbps", "delay": "500ns", "matchings": "rotor", "slot": "4us", "dark": "1us"}
    graph, faults = optical_fabric(ROTOR_OF_SIX, section | {"offset": "1500ns"} | HELD)
    return Case(graph, collective_program("all-to-all", 6, 24_000), settings(faults=faults), {})


def epochs():
    """Two optical switches that lose what is on its way, beside spines, with other routes in each epoch."""
    of_both = {"ports": "leaf", "rate": "40Gbps", "delay": "700ns", "drain": "300ns", "dark": "900ns"}
    twice = {"at": ["1us", "5us"], "period": "11us", "matchings": [[[0, 1]], [[1, 2]]]}
    once = {"matchings": [[[0, 2]]]}
    spec = "leaf-spine:leaves=3,hosts_per_leaf=2,spines=2,rate=100Gbps,delay=500ns,uplink_rate=20Gbps"
    graph, faults = optical_fabric(spec, of_both | twice, of_both | once)
    return Case(
        graph,
        collective_program("all-to-all", 6, 60_000),
        settings(faults=faults, rto_ps=40_000_000, max_retries=1000, seed=2),
        {},
    )


CASES = {
    made.__name__: made
    for made in (
        lossy,
        cut_through,
        ties,
        torus,
        no_delay,
        rails,
        stack,
        concurrent,
        messages,
        permutation,
        symbolic,
        roce,
        credits_of_lanes,
        sprayed,
        credited,
        adaptive,
        phases,
        nccl,
        driven,
        nvls,
        tree,
        in_network,
        asked,
        contended,
        one_at_a_time,
        ends,
        detoured,
        listed,
        rotor,
        epochs,
    )
}


@cache
def case(name):
    return CASES[name]()


@cache
def serial(name):
    """Results of one LP, which all others must equal."""
    return run(build_world(*case(name)[:3]))


@cache
def wanted(name):
    return fingerprint(serial(name))


@cache
def owner_of(name, method, parts):
    """The LP of each node; servers are cut where they must be. None = the method cannot divide this fabric."""
    graph, switches = case(name).user or (case(name).graph, ())
    if method in case(name).owners:
        return case(name).owners[method]
    smallest = min(case(name).settings.header_bytes, case(name).settings.ack_bytes)
    for keep_hosts in (True, False):
        try:
            found = partition.partition(graph, parts, method=method, smallest_bytes=smallest, keep_hosts=keep_hosts)
            return with_aggregators_of(found.owner.astype(np.int64), graph, switches)
        except partition.PartitionError:
            continue
    return None


def in_threads(name, owner, threads):
    return run(build_world(*case(name)[:3], owner), threads=threads)


def in_processes(name, owner, processes):
    graph, program, settings = case(name)[:3]
    return run_divided(Layout(graph, settings, owner), program, settings, Processes(processes))

"""Numbers of nodes and links are no matter where there is one path: renumbered hosts give renumbered results."""

import numpy as np
import pytest

from nadi.pdes import Settings, SharedBuffer
from nadi.pdes.network.balancing import balancing
from nadi.pdes.nic.congestion import control
from nadi.topologies.graph import NVSWITCH, SWITCH
from nadi.topologies.graph_builder import GraphBuilder
from tests.pdes.cases import BASE, Traces
from tests.pdes.compare import simulate

HOSTS, PER_HOST = 4, 3
NPUS = HOSTS * PER_HOST
NVLINK, LEAF, SPINE = NPUS, NPUS + HOSTS, NPUS + HOSTS + HOSTS
NODES = SPINE + 1
CABLES = [
    *((npu, NVLINK + npu // PER_HOST, 400) for npu in range(NPUS)),
    *((npu, LEAF + npu // PER_HOST, 100) for npu in range(NPUS)),
    *((LEAF + leaf, SPINE, 200) for leaf in range(HOSTS)),
]
"""Ends and Gb/s: hosts behind NVSwitches, whose NPUs have one leaf switch, below one spine."""
BUFFER = {"buffer_bytes": 400_000, "ecn_kmin_bytes": 4000, "ecn_kmax_bytes": 40_000, "ecn_pmax": 0.5}
SETTINGS = {
    "drops": {"queue_limit_bytes": 4000, "rto_ps": 20_000_000},
    "cut through": {"cut_through": True},
    "pauses and marks": {"switch": SharedBuffer(**BUFFER, pfc_alpha=0.01), "congestion_control": control("dcqcn")},
    "trims": {
        "switch": SharedBuffer(**BUFFER | {"buffer_bytes": 20_000}, pfc=False, trimming=True),
        "congestion_control": control("nscc"),
        "selective_repeat": True,
    },
    "sprays": {
        "switch": SharedBuffer(**BUFFER),
        "congestion_control": control("hpcc"),
        "load_balancing": balancing("spray"),
    },
}


def renumbering(random):
    """Return the new number of each node: NPUs stay NPUs, and switches switches."""
    return np.concatenate([random.permutation(NPUS), NPUS + random.permutation(NODES - NPUS)])


def reordered(cables, random):
    """Return cables in another order, but those of each node in their order, so that its ports keep their numbers."""
    remaining, order = list(cables), []
    while remaining:
        seen, free = set(), []
        for cable in remaining:
            free += [cable] if seen.isdisjoint(cable[:2]) else []
            seen.update(cable[:2])
        order.append(free[random.integers(len(free))])
        remaining.remove(order[-1])
    return order


def fabric(number, cables):
    """Build the fabric with these cables, whose node n has the number number[n]."""
    builder = GraphBuilder("renumbered", NPUS)
    old = np.argsort(number)[NPUS:]
    is_nvlink = (old >= NVLINK) & (old < LEAF)
    builder.add_named_switches(
        [f"s{n}" for n in old], latency_ps=np.where(is_nvlink, 0, 300_000), kind=np.where(is_nvlink, NVSWITCH, SWITCH)
    )
    for a, b, rate_gbps in cables:
        builder.add_cables(number[a], number[b], rate_gbps * 10**9, 500_000)
    host = np.empty(NPUS, np.int64)
    host[number[:NPUS]] = np.arange(NPUS) // PER_HOST
    return builder.graph(host=host)


def program(messages, number):
    """Return the program of messages (src, dst, bytes, tag) between renumbered NPUs."""
    traces = Traces(NPUS)
    for src, dst, size, tag in messages:
        traces.message(int(number[src]), int(number[dst]), size, tag)
    return traces.program()


def flows_of(results, number):
    """Return the messages of a run, sorted, with the numbers that NPUs had before."""
    before = np.argsort(number)
    columns = [before[results.flows["src"]], before[results.flows["dst"]]]
    columns += [results.flows[name] for name in ("lane", "seq", "bytes", "start_ps", "finish_ps")]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_renumbered_hosts_give_renumbered_results(name):
    random = np.random.default_rng(7)
    pairs = [(src, dst) for src in range(NPUS) for dst in (0, PER_HOST, *random.choice(NPUS, 2)) if src != dst]
    messages = [(src, dst, int(random.choice([400, 20_000, 60_000])), tag) for tag, (src, dst) in enumerate(pairs)]
    chosen = Settings(**(BASE | {"max_retries": 100} | SETTINGS[name]))
    same = np.arange(NODES)
    results = simulate(fabric(same, CABLES), program(messages, same), chosen)
    counted = ("dropped_packets", "pause_frames", "trimmed_packets", "marked_packets")
    if name != "cut through":
        assert any(results.counters[counter] > 0 for counter in counted)
    for _ in range(3):
        number = renumbering(random)
        graph = fabric(number, reordered(CABLES, random))
        renumbered = simulate(graph, program(messages, number), chosen)
        assert flows_of(renumbered, number) == flows_of(results, same)
        assert {key: renumbered.counters[key] for key in counted} == {key: results.counters[key] for key in counted}

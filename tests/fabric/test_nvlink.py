"""NVLink beside switches with shared buffers: no marks, no pauses and no congestion control within a domain."""

import numpy as np
import pytest

from nadi.pdes import LinkFault, Settings, build_world, run
from nadi.pdes.construction.settings import SharedBuffer
from nadi.pdes.network.framing import domain_switches, is_in_domain
from nadi.pdes.nic import congestion
from nadi.topologies import build
from nadi.topologies.graph import NVSWITCH
from tests.fabric import scenarios as sc
from tests.failures.common import cable, faults_of

HOSTS = build("dgx-h100:npus=16")
FORWARDING = build("rail-fat-tree:npus=16,gpus_per_host=4,hosts_per_unit=2,rail_spines=true,spines=1,forwarding=true")
BUFFER = SharedBuffer(buffer_bytes=4_000_000, ecn_kmin_bytes=2000, ecn_kmax_bytes=4000, ecn_pmax=1.0)
DROPPING = SharedBuffer(buffer_bytes=60_000, pfc=False, ecn_kmin_bytes=2000, ecn_kmax_bytes=4000, ecn_pmax=1.0)


def incast(graph, begin_us=(0,), **settings):
    """Results of seven messages to NPU 0 from its host, and as many from the next one, in each turn."""
    per_host = int(np.bincount(graph.host[: graph.npus])[0])
    src = [*range(1, per_host), *range(per_host, 2 * per_host - 1)] * len(begin_us)
    at = np.repeat(np.array(begin_us) * sc.US, len(src) // len(begin_us)).tolist()
    program = sc.program(graph.npus, sc.messages(src, 0, 400_000, at))
    return run(build_world(graph, program, Settings(**settings)))


def within_the_host(results):
    """Rows of the flows of NPU 0's host, in order."""
    flows = results.flows
    inside = HOSTS.host[flows["src"]] == HOSTS.host[flows["dst"]]
    columns = np.stack([flows[name][inside] for name in ("src", "start_ps", "finish_ps")])
    return columns[:, np.lexsort(columns)].tolist()


@pytest.mark.parametrize("control", congestion.names())
@pytest.mark.parametrize("switch", [BUFFER, DROPPING])
def test_what_stays_in_a_host_does_not_notice_the_fabric(control, switch):
    """Its messages take as long as without buffers and control, to the picosecond; others are marked or lost."""
    chosen = {} if switch.pfc else {"selective_repeat": True, "rto_ps": 500 * sc.US}
    plain = incast(HOSTS)
    found = incast(HOSTS, switch=switch, congestion_control=congestion.control(control), **chosen)
    assert within_the_host(found) == within_the_host(plain)
    inside = is_in_domain(HOSTS)
    links = found.links
    assert (links["marked_packets"] + links["dropped_packets"])[~inside].sum() > 0
    for column in ("marked_packets", "pause_frames", "paused_ps", "dropped_packets"):
        assert links[column][inside].sum() == 0
    assert found.links["max_queue_bytes"][inside].max() == plain.links["max_queue_bytes"][inside].max() > 0


def test_an_nvswitch_drops_nothing():
    found = incast(HOSTS, queue_limit_bytes=40_000, rto_ps=500 * sc.US)
    assert within_the_host(found) == within_the_host(incast(HOSTS))
    dropped = found.links["dropped_packets"]
    assert dropped[is_in_domain(HOSTS)].sum() == 0 < dropped.sum()


def test_nvswitches_that_forward_to_other_hosts_are_switches_of_the_fabric():
    assert not domain_switches(FORWARDING).any()
    found = incast(FORWARDING, switch=BUFFER, congestion_control=congestion.control("dcqcn"))
    nvswitch = FORWARDING.node_kind[FORWARDING.link_src] == NVSWITCH
    assert found.links["marked_packets"][nvswitch].sum() > 0


def test_a_queue_pair_that_leaves_a_broken_nvlink_is_controlled():
    """The first turn goes over NVLink; then its cable breaks, the second goes through NICs and is notified."""
    nvswitch = HOSTS.npus
    fault = LinkFault(cable(HOSTS, 0, nvswitch), 100 * sc.US, down=True)
    chosen = {"switch": BUFFER, "congestion_control": congestion.control("dcqcn")}
    inside = {}
    for faults in ([], [fault]):
        found = incast(HOSTS, (0, 400), faults=faults_of(HOSTS, faults), rto_ps=500 * sc.US, **chosen)
        inside[len(faults)] = found.counters["congestion_notifications"]
    assert inside[1] > 1.5 * inside[0] > 0

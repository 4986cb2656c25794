"""A thousand NPUs: the answer is still exact, in seconds and in little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.closed_forms import Hop, fat_tree_hops, ring_ps, steps_ps

G400 = 400 * 10**9
NS = 10**3
NPUS = 1024
STEPS = 2 * (NPUS - 1)
ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys, time
from nadi.pdes.core.jit import peak_rss_bytes
from tests.scenarios.running import simulate
from nadi.workload import collective_program
simulate("ring:npus=2", collective_program("all-reduce", 2, 8))  # the kernels are there
found = []
for network in sys.argv[1:]:
    begun = time.process_time()
    results = simulate(network, collective_program("all-reduce", 1024, 1024 * 4096))
    cpu_s = time.process_time() - begun
    found.append([results.finish_time_ps, results.counters["packet_hops"], cpu_s, peak_rss_bytes() / 2**30])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    """Finish, packet-hops, CPU seconds and peak GiB of all-reduces of 4 KiB messages, in a process of their own."""
    command = [sys.executable, "-c", SCRIPT, "ring:npus=1024", "fat-tree:k=16,switch_latency=300ns"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ring_of_1024(found):
    finish_ps, packet_hops, cpu_s, peak_gib = found[0]
    assert finish_ps == steps_ps(STEPS, 4096, Hop(1, 500 * NS), G400, shared=False)
    assert packet_hops == NPUS * STEPS * 2
    assert cpu_s < 30
    assert peak_gib < 2


def test_fat_tree_of_1024(found):
    finish_ps, packet_hops, cpu_s, peak_gib = found[1]
    hops = fat_tree_hops(16, NPUS, link_ps=500 * NS, switch_ps=300 * NS)
    assert finish_ps == pytest.approx(ring_ps(STEPS, 4096, hops, G400), rel=1e-12)
    assert packet_hops == 2 * STEPS * sum(hop.links for hop in hops)
    assert cpu_s < 30
    assert peak_gib < 2

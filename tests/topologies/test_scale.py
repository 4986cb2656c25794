"""Large networks are built in time and memory, in a process of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, random, re, sys, time
from pathlib import Path
from nadi import topologies
begin = time.process_time()
graph = topologies.build(sys.argv[1])
seconds = time.process_time() - begin
peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # ru_maxrss survives exec
choose = random.Random(1)
hops = [len(topologies.route(graph, *choose.sample(range(graph.npus), 2), choose.choice)) for _ in range(200)]
print(json.dumps([seconds, peak, graph.npus, graph.nodes - graph.npus, graph.links, max(hops)]))
"""


@pytest.mark.parametrize(
    ("spec", "switches", "cables", "hops"),
    [
        ("fat-tree:npus=16384", 2304, 49152, 6),
        ("rail-optimised:npus=16384", 2592, 49152, 4),
        ("deepseek-h800:gpus=16384", 2816, 65536, 5),
        ("torus:sizes=32x32x16", 0, 49152, 40),
    ],
)
def test_16384_npus(spec, switches, cables, hops):
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, spec],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    seconds, peak_bytes, npus, switches_found, links, longest = json.loads(result.stdout)
    assert (npus, switches_found, links) == (16384, switches, 2 * cables)
    assert 2 < longest <= hops
    assert seconds < 30
    assert peak_bytes < 500e6

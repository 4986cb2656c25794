"""Compare the flow model with SimGrid: `python scripts/simgrid_flows.py ./simgrid_flows NPUS`.

Random flows begin at once on a leaf-spine fabric. Both programs send them over the links that Nadi's ECMP chooses,
without headers, acknowledgements and latencies, in packets of a byte: SimGrid's network model CM02 has none of them.
./simgrid_flows is the program that scripts/simgrid_flows.cpp compiles to. The script prints the largest difference of
ends, and both times.
"""

import subprocess
import sys
import time

import numpy as np

from nadi import pdes, topologies, workload
from nadi.pdes.core.packet import destination

PARTNERS = 8  # receivers of each NPU
BYTES_PER_S = 12.5e9  # rate of each link


def main() -> None:
    """Run the flows with both programs."""
    npus = int(sys.argv[2])
    graph = topologies.build(f"leaf-spine:npus={npus},hosts_per_leaf=16,spines=8,rate=100Gbps,delay=1ns")
    random = np.random.default_rng(1)
    sizes = np.zeros((npus, npus), np.int64)
    for npu in range(npus):
        receivers = random.choice(np.delete(np.arange(npus), npu), PARTNERS, replace=False)
        sizes[npu, receivers] = random.integers(10**6, 11 * 10**6, PARTNERS, endpoint=True)
    settings = pdes.Settings(fidelity=pdes.fidelity.fidelity("flow"), mtu_bytes=1, header_bytes=0, ack_bytes=0)
    for _ in range(2):  # the first run may compile kernels
        simulation = pdes.build_world(graph, workload.uneven_program(sizes, "direct"), settings)
        begun = time.perf_counter()
        found = pdes.run(simulation).flows
        nadi_s = time.perf_counter() - begun

    world = simulation.lps[0].world
    finish_ps = dict(zip(zip(found["src"], found["dst"], strict=True), found["finish_ps"], strict=True))
    ends_s, lines = [], []
    for pair in np.flatnonzero(world.flows.flow.hops):
        flow, qp = world.flows.flow[pair], world.qps.qp[pair]
        src, dst = int(qp.npu), int(destination(qp.w1))
        hops = slice(flow.first_hop, flow.first_hop + flow.hops)
        links = world.flows.hop[hops].link[world.flows.hop_use[hops].is_back == 0]
        ends_s.append((finish_ps[src, dst] - flow.latency_ps) * 1e-12)
        lines.append(f"{src} {dst} {sizes[src, dst]} {len(links)} {' '.join(map(str, links))}")
    text = "\n".join([f"{npus} {len(world.flows.link)} {len(lines)} {BYTES_PER_S}", *lines])
    output = subprocess.check_output(sys.argv[1], input=text, text=True)  # noqa: S603 - the program of the user
    simgrid_s, *others_s = map(float, output.split())
    print(
        f"{len(lines)} flows: ends differ by at most {np.abs(np.divide(others_s, ends_s) - 1).max():.1e} of their time"
    )
    print(f"Nadi {nadi_s:.2f} s, SimGrid {simgrid_s:.2f} s: {simgrid_s / nadi_s:.0f} times as long")


if __name__ == "__main__":
    main()

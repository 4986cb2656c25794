"""Two flows through one bottleneck as plain Python, with all that the congestion control is told written down.

Run as a script (NUMBA_DISABLE_JIT=1) with names of controls, it prints JSON, of each by name:

    calls: [queue pair, event, now, a, b, c, una, next, what the packet has carried, window, ps per byte] after each
    marks: [bytes left in the queue, marked] of each packet that left some behind
    notified: when the receiver sent congestion notifications, and to whom
    settled: window in packets, base round trip, ps per byte of the line
"""

import dataclasses
import json
import sys
from unittest.mock import patch

import numpy as np

from nadi import pdes
from nadi.pdes.core.packet import FLAG_CNP, source
from nadi.pdes.core.state import world_at
from nadi.pdes.network import shared_switch
from nadi.pdes.nic import congestion, transport
from tests.fabric import scenarios as sc
from tests.fabric.cases import star

MTU, DELAY, GBPS = 1000, 500_000, 100
PACKETS = 240
BEGIN, LATER = sc.US, 10 * sc.US
WINDOW = 40
CNP_INTERVAL = 5 * sc.US
SWITCH = pdes.SharedBuffer(ecn=True, ecn_kmin_bytes=1000, ecn_kmax_bytes=8000, ecn_pmax=0.3)
"""Kmin 4 kB and Kmax 32 kB at 100 Gb/s."""
VALUES = {"timely": {"t_low_ps": 2.4e6, "t_high_ps": 5e6}, "swift": {"base_target_ps": 5e5}}
"""What would not act on round trips of some microseconds by default."""


def listening(update, calls):
    """A hook that does as `update` and writes it down."""

    def told(address, q, event, now, a, b, c):
        world = world_at(address)
        qp, met = world.qps.qp[q], world.net.carried
        carried = met.met[: 2 * met.hops].tolist() if world.net.hooks.telemetry else []
        before = [int(x) for x in (q, event, now, a, b, c, qp.una, qp.next_seq)]
        result = update(address, q, event, now, a, b, c)
        state = world.qps.cc[q]
        after = [int(state.window_packets), float(state.pace_ps_per_byte)]
        calls.append([*before, carried, *after])
        return result

    return told


def run(name):
    heard = {"calls": [], "marks": [], "notified": []}
    control = congestion.control(name, VALUES.get(name))
    control = dataclasses.replace(control, update=listening(control.update, heard["calls"]))
    is_marked, send_ack = shared_switch.is_marked, transport.send_ack

    def marks(net, node, link, klass, left, start):
        marked = bool(is_marked(net, node, link, klass, left, start))
        heard["marks"].append([int(left), marked])
        return marked

    def acks(net, npus, qps, node, row, now, w1, *rest):
        if rest[-1] & FLAG_CNP:
            heard["notified"].append([int(source(w1)), int(now)])
        send_ack(net, npus, qps, node, row, now, w1, *rest)

    sent = sc.messages([0, 1], 2, MTU * PACKETS, [BEGIN, LATER])
    settings = pdes.Settings(
        mtu_bytes=MTU,
        window_bytes=WINDOW * MTU,
        congestion_control=control,
        switch=SWITCH,
        cnp_interval_ps=CNP_INTERVAL,
    )
    sim = pdes.build_world(star(3, rate=GBPS, delay=DELAY).graph(), sc.program(3, sent), settings)
    with patch.object(shared_switch, "is_marked", marks), patch.object(transport, "send_ack", acks):
        results = pdes.run(sim)
    const = sim.lps[0].world.net.const
    heard["settled"] = [int(const.window_packets), int(const.base_rtt_ps), 8000 / GBPS]
    heard["counters"] = results.counters
    heard["finish"] = np.sort(results.flows["finish_ps"]).tolist()
    return heard


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: run(name) for name in sys.argv[1:]}))

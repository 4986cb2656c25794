"""Running both and saying where they differ."""

from collections import Counter

import numpy as np
import pytest

from nadi.pdes import RunError, build_world, run
from tests.pdes import naive

FLOW = ("src", "dst", "group", "seq", "lane", "bytes", "start_ps", "finish_ps")


def simulate(graph, program, settings):
    return run(build_world(graph, program, settings))


def by_hand(graph, program, settings, results, simulator=naive.Simulator):
    """The naive run with the window and the timeout that the engine settled."""
    settled = results.settled
    return simulator(graph, program, settings, settled["window_packets"], settled["rto_ps"]).run()


def differences(results, by_hand):
    links = {
        "tx_bytes": [link.tx_bytes for link in by_hand.links],
        "tx_packets": [link.tx_packets for link in by_hand.links],
        "dropped_packets": [link.dropped for link in by_hand.links],
        "max_queue_bytes": [int(link.longest_wait / link.ps_per_byte) for link in by_hand.links],
    }
    rows = [row for npu in by_hand.npus for row in npu.rows]
    found = {
        "finish": results.finish_time_ps == by_hand.finish,
        "rows": np.diff(results.npu_node_ptr).tolist() == [len(npu.rows) for npu in by_hand.npus],
        "row start": results.node_start_ps.tolist() == [row.start for row in rows],
        "row finish": results.node_finish_ps.tolist() == [row.finish for row in rows],
        "flows": Counter(zip(*(results.flows[name].tolist() for name in FLOW), strict=True)) == Counter(by_hand.flows),
    }
    found |= {f"links {name}": results.links[name].tolist() == values for name, values in links.items()}
    found |= {name: results.counters[name] == value for name, value in by_hand.count.items()}
    return [name for name, same in found.items() if not same]


def check(graph, program, settings, simulator=naive.Simulator):
    """Both runs must agree to the picosecond, or both give up; returns the results, if any."""
    sim = build_world(graph, program, settings)
    const = sim.lps[0].world.net.const
    try:
        results = run(sim)
    except RunError as error:
        if "unacknowledged after" not in str(error):
            raise
        with pytest.raises(naive.GaveUpError):
            simulator(graph, program, settings, int(const.window_packets), int(const.rto_ps)).run()
        return None
    assert differences(results, by_hand(graph, program, settings, results, simulator)) == []
    return results

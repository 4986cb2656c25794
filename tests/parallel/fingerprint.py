"""What a run brought, as plain values that can be compared and sent: the same for every way of running."""

import hashlib

import numpy as np

FLOW = ("src", "dst", "group", "seq", "lane", "bytes", "start_ps", "finish_ps")


def hashed(array):
    return hashlib.sha256(np.ascontiguousarray(array, np.int64).tobytes()).hexdigest()[:16]


def outcome(results):
    """What came of a run of any fidelity; `windows` may differ, since they are as long as the partition lets them."""
    return (
        {
            "digest": results.digest,
            "finish": results.finish_time_ps,
            "row counts": hashed(results.npu_node_ptr),
            "row starts": hashed(results.node_start_ps),
            "row finishes": hashed(results.node_finish_ps),
        }
        | {f"flows {name}": hashed(results.flows[name]) for name in FLOW}
        | {f"links {name}": hashed(values) for name, values in results.links.items()}
        | {f"count {name}": value for name, value in results.counters.items() if name != "windows"}
    )


def fingerprint(results):
    """All of a run of packets that must not depend on who ran it."""
    return outcome(results) | {name: results.settled[name] for name in ("window_packets", "rto_ps", "cell_ps")}


def differing(found, wanted):
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))

"""Nadi beside published figures of Multipath Reliable Connection (arXiv 2605.04333, sections 2 and 5).

`python scripts/mrc_figures.py [NAME ...]` prints a table; names are those of FIGURES. Each takes seconds to a minute.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nadi
from nadi.workload import TraceSet
from nadi.workload.generators.point_to_point import flow_traces, read_connections

MB = 10**6
FAULT_US = 100  # time at which parts fail, when flows have long been at full rate
SAMPLE_US = 100  # interval in which bytes of links are counted
MRC = {  # lossy, trimming, sprayed over all ports; the retransmission timeout is the example of mrc_ctl.h
    "switch": "shared-buffer",
    "pfc": False,
    # Ultra Ethernet 1.0, 3.6.13: with a bandwidth-delay product of 68 KB of a port of 100 Gb/s, marks from 0.2 to 0.8
    # of it, packets are trimmed at 1.0, and the target delay is 0.75 round trips. Thresholds are given at 25 Gb/s, and
    # scale with the rate of a port.
    "buffer": "70MB",
    "trimming": True,
    "trim_threshold": "17kB",
    "ecn_kmin": "3400B",
    "ecn_kmax": "13600B",
    "ecn_pmax": 1.0,
    "congestion_control": "nscc",
    "congestion": {"target_qdelay_rtts": 0.75},
    "entropy": "mrc",
    "paths": 256,
    "load_balancing": "entropy",  # source routes: an entropy names plane and spine (P1, 2.4)
    "window": "2MB",  # MPR of 512 packets, the most that a queue pair has here; mrc.h's example is 1,024
    "nic_ports": "all",
    "delivery": "rud",
    "queue_pairs": "message",
    "rto": "262us",
    "detection_time": "1s",  # no routing protocol: only senders react
}
# Equal windows of ten bandwidth-delay products without control: queues of full uplinks never fall empty.
UNCONTROLLED = {key: value for key, value in MRC.items() if not key.startswith(("congestion", "trim"))} | {
    "window": "1MB"
}
# A RoCE NIC has no window: only its packet numbers, of which 2^23 may be under way (InfiniBand volume 1, 9.7.2). With
# Nadi's window of one round trip, seven senders have less under way than switches mark or pause at.
ROCE = {"switch": "shared-buffer", "queue_pairs": "message", "window": "1GB"}
DCQCN = ROCE | {"congestion_control": "dcqcn"}


class Figure(NamedTuple):
    """A figure beside the published one."""

    what: str
    published: str
    found: str


Flow = tuple[int, int, int]  # sender, receiver and bytes


def traces(nodes: int, flows: Sequence[Flow]) -> TraceSet:
    """Return the traces of messages that all begin at once."""
    lines = [f"{src}->{dst} id {number} start 0 size {size}" for number, (src, dst, size) in enumerate(flows, 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flows.cm"
        path.write_text("\n".join([f"Nodes {nodes}", f"Connections {len(flows)}", *lines]) + "\n", "utf-8")
        return flow_traces(read_connections(path)).traces


def simulate(
    topology: str,
    flows: Sequence[Flow],
    network: Mapping[str, Any],
    faults: Sequence[Mapping[str, Any]] = (),
    seed: int = 1,
) -> nadi.Run:
    """Return the run of messages on a fabric, with samples of its links every SAMPLE_US."""
    nodes = int(topology.partition("npus=")[2].partition(",")[0])
    output = {"sample": f"{SAMPLE_US}us"}
    return nadi.simulate(
        {"network": network, "faults": list(faults), "engine": {"seed": seed}, "output": output},
        topology=topology,
        workload=traces(nodes, flows),
        force=True,
    )


def finish_us(run: nadi.Run) -> float:
    """Return the time of a run in microseconds."""
    return float(run.summary["finish_time_ps"]) / 1e6


def slowest_gbps(run: nadi.Run) -> list[float]:
    """Return the rate of the slowest message of each sender."""
    times: dict[int, float] = {}
    for flow in run.flows.to_pylist():
        rate = 8e3 * flow["bytes"] / (flow["finish_ps"] - flow["start_ps"])
        times[flow["src"]] = min(rate, times.get(flow["src"], rate))
    return [times[src] for src in sorted(times)]


def planes(npus: int, planes: int, rate_gbps: int, per_leaf: int) -> str:
    """Return a fabric of leaf-spine planes without oversubscription."""
    return f"multi-plane:npus={npus},planes={planes},nics_per_leaf={per_leaf},rate={rate_gbps}Gbps,delay=500ns"


def rate_gbps(topology: str, pairs: Sequence[tuple[int, int]], faults: Sequence[Mapping[str, Any]]) -> float:
    """Return the rate of the slowest of equal messages, by what a longer one takes more than a shorter one."""
    # whole rounds of 256 paths, also of those that are left, within the 2 ms until probes
    packets = (7168, 7168 + 7140)
    times = [finish_us(simulate(topology, [(*pair, 4096 * count) for pair in pairs], MRC, faults)) for count in packets]
    return (packets[1] - packets[0]) * 4096 * 8e-3 / (times[1] - times[0])


def uplinks_in_use(run: nadi.Run, rate_gbps: int) -> float:
    """Return what the uplinks of leaf 0 send between 200 and 500 us, in links at their whole rate."""
    uplinks = {link["link"] for link in run.links.to_pylist() if link["src"] == "leaf 0" and "spine" in link["dst"]}
    kept = [each for each in run.samples.to_pylist() if each["link"] in uplinks and 2e8 <= each["time_ps"] < 5e8]
    return sum(each["tx_bytes"] for each in kept) * 8e-3 / rate_gbps / 300


def capacity() -> Iterator[Figure]:
    """Yield what a dead link costs, once senders have left it out: of planes of 800 and of 100 Gb/s, and of a NIC."""
    # A leaf of 64 ports of 800 Gb/s has 32 NICs and 32 spines, one of 512 ports of 100 Gb/s 256 of each. In one plane
    # the 31 links that are left are full. In eight, few senders have a path on the link, each one of its 256, and
    # nothing is full.
    topology, flows = planes(64, 1, 800, 32), [(i, i + 32, 14308 * 4096) for i in range(32)]
    fault = {"at": f"{FAULT_US}us", "link": "leaf 0 - spine 0", "state": "down"}
    for name, network in {"equal windows": UNCONTROLLED, "NSCC": MRC}.items():
        whole, left = (uplinks_in_use(simulate(topology, flows, network, faults), 800) for faults in ([], [fault]))
        found = f"{left:.2f} of 31 link rates in use, {whole:.2f} of 32 without the fault"
        yield Figure(f"leaf-spine link, one plane of 800G, {name}: uplinks of its leaf", f"3 % ({1 / 32:.3%})", found)
    cases = {
        "leaf-spine link, one plane of 800G": (topology, 32, 32, "leaf 0 - spine 0", "3 %", 1 / 32),
        "leaf-spine link, 8 planes of 100G": (planes(512, 8, 800, 256), 256, 32, "leaf 0 - spine 0", "0.4 %", 1 / 256),
        "NIC-leaf link, 8 planes of 100G": (planes(16, 8, 800, 8), 8, 1, "npu 0 - leaf 0", "12 %", 1 / 8),
    }
    for name, (fabric, per_leaf, senders, link, published, exact) in cases.items():
        pairs = [(i, i + per_leaf) for i in range(senders)]
        lost = 1 - rate_gbps(fabric, pairs, [fault | {"link": link}]) / rate_gbps(fabric, pairs, [])
        yield Figure(f"{name}: rate lost by the slowest", f"{published} ({exact:.3%})", f"{lost:.3%}")


def dead_port() -> Iterator[Figure]:
    """Yield until when packets are lost after one of eight ports of a NIC has failed."""
    topology, flows = planes(16, 8, 800, 8), [(0, 9, 40 * MB)]
    for name, link in {"own port": "npu 0 - leaf 0", "receiver's port": "npu 9 - leaf 3"}.items():
        fault = {"at": f"{FAULT_US}us", "link": link, "state": "down"}
        again = simulate(topology, flows, MRC, [fault]).summary["retransmitted_packets"]
        for until in range(5, 100, 5):
            short = simulate(topology, flows, MRC, [fault | {"until": f"{FAULT_US + until}us"}])
            if short.summary["retransmitted_packets"] == again:
                break
        yield Figure(f"{name} of 8 down: last loss of data", "a few tens of us", f"within {until} us, {again} packets")


def losses() -> Iterator[Figure]:
    """Yield the rate of a ring of 64 with random losses at all ports."""
    topology, flows = planes(64, 4, 400, 16), [(i, (i + 17) % 64, 64 * MB) for i in range(64)]
    whole = finish_us(simulate(topology, flows, MRC))
    for rate, published in ((0.001, "no loss of rate"), (0.01, "about a third of the rate")):
        faults = [
            {"at": "0us", "link": f"npu {npu} - leaf {4 * plane + npu // 16}", "error_rate": rate / 2}
            for npu in range(64)
            for plane in range(4)
        ]
        run = simulate(topology, flows, MRC, faults)
        text = f"slowest flow {whole / finish_us(run):.0%} of the rate, {run.summary['timeouts']} timeouts"
        yield Figure(f"random loss of {rate:.1%}, half of it at each end", published, text)


def incast() -> Iterator[Figure]:
    """Yield the rates of seven senders to one receiver, and of a victim between the same leaves, over eight seeds.

    The victim is done before the senders are, and sends for milliseconds where it is fast.
    """
    one_plane = "leaf-spine:npus=16,hosts_per_leaf=8,spines=8,rate=400Gbps,delay=500ns"
    variants = {
        "MRC": (planes(16, 4, 400, 8), MRC, 1, 256, "fair, victim untouched"),
        "DCQCN, 1 queue pair": (one_plane, DCQCN, 1, 256, "victim 25 % slower"),
        "DCQCN, 8 queue pairs": (one_plane, DCQCN, 8, 256, "victim 75 % slower in intervals of 1 s"),
        "PFC alone": (one_plane, ROCE, 1, 32, "30 to 100 Gb/s"),
    }
    for name, (topology, network, count, victim_mb, published) in variants.items():
        pairs = [*((i, 8, 128) for i in range(7)), (7, 9, victim_mb)]
        flows = [(src, dst, size * MB // count) for src, dst, size in pairs for _ in range(count)]
        runs = [simulate(topology, flows, network, seed=seed) for seed in range(1, 9)]
        # of each sender until its last message is complete
        rates = [[count * rate for rate in slowest_gbps(run)] for run in runs]
        senders = [rate for of_run in rates for rate in of_run[:-1]]
        victims = sorted(of_run[-1] for of_run in rates)
        # a path that the victim shares with no sender leaves it all of its rate but the headers
        slower = [rate for rate in victims if rate < 380]
        text = f"senders {min(senders):.0f} to {max(senders):.0f} Gb/s, "
        text += f"victim {victims[0]:.0f} to {victims[-1]:.0f}, below 380 in {len(slower)} of 8 seeds"
        text += f": {slower[0]:.0f} to {slower[-1]:.0f}, mean {sum(slower) / len(slower):.0f}" if slower else ""
        text += f"; {sum(int(run.summary['pause_frames']) for run in runs) // 8} pauses"
        yield Figure(f"7:1 incast, {name}", published, text)


def reboot() -> Iterator[Figure]:
    """Yield the time of an exchange of 16 NICs of four planes while a spine of one plane is down for 2 ms."""
    topology, flows = planes(16, 4, 400, 4), [(i, (i + 5) % 16, 160 * MB) for i in range(16)]
    whole = finish_us(simulate(topology, flows, MRC))
    fault = {"at": f"{FAULT_US}us", "until": f"{FAULT_US + 2000}us", "switch": "spine 0", "state": "down"}
    run = simulate(topology, flows, MRC, [fault])
    text = f"{finish_us(run) / whole - 1:.1%} longer than {whole:.0f} us, {run.summary['lost_packets']} packets lost"
    yield Figure("spine of 16 down for 2 ms: step time", "largely unaffected, 580,000 packets lost", text)


def flap() -> Iterator[Figure]:
    """Yield the goodput of four NICs, each with one of four ports that goes down and up."""
    topology, size, begin, end = planes(16, 4, 400, 4), MB, 500, 2500
    flows = [(i, (i + 5) % 16, size) for i in range(4) for _ in range(250)]
    faults = [
        {"at": f"{at}us", "until": f"{at + 100}us", "link": f"npu {npu} - leaf {npu // 4}", "state": "down"}
        for npu in range(4)
        for at in range(begin, end, 200)
    ]
    run = simulate(topology, flows, MRC | {"queue_pairs": "pair"}, faults)
    done = [(flow["finish_ps"] / 1e6, flow["bytes"]) for flow in run.flows.to_pylist()]
    spans = {"before": (100, begin), "meanwhile": (begin, end), "the first ms after": (end, end + 1000)}
    rates = {
        name: sum(each for time, each in done if low <= time < high) * 8e-3 / (high - low) / 4
        for name, (low, high) in spans.items()
    }
    text = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()) + " Gb/s"
    yield Figure("a port of each of four NICs flaps for 2 ms", "-25 %, full speed at once after", text)


def queue_pairs() -> Iterator[Figure]:
    """Yield the rate of a ring of 64 over four planes by one queue pair of MRC, and by 1 to 16 of RoCE."""
    topology, size = planes(64, 4, 400, 16), 16 * MB
    ring = [(i, (i + 17) % 64) for i in range(64)]
    best_us = size * 8 / 400e3 * 4178 / 4096
    mrc = finish_us(simulate(topology, [(*pair, size) for pair in ring], MRC))
    yield Figure("one queue pair over 256 paths, slowest", "better than 16 of RoCE", f"{best_us / mrc:.0%} of 400G")
    for count in (1, 2, 4, 8, 16):
        flows = [(*pair, size // count) for pair in ring for _ in range(count)]
        text = f"{best_us / finish_us(simulate(topology, flows, DCQCN)):.0%} of 400G"
        yield Figure(f"{count} queue pairs of RoCE, slowest", "one: about half" if count == 1 else "", text)


FIGURES: Mapping[str, Callable[[], Iterator[Figure]]] = {
    "capacity": capacity,
    "port": dead_port,
    "losses": losses,
    "incast": incast,
    "reboot": reboot,
    "flap": flap,
    "queue-pairs": queue_pairs,
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []])
    for name in parser.parse_args().names or FIGURES:
        for figure in FIGURES[name]():
            print(f"| {figure.what} | {figure.published} | {figure.found} |", flush=True)


if __name__ == "__main__":
    main()

"""Relations that hold in the results of every run: sums of messages, and lower bounds of collectives.

Lower bounds follow from counting bytes alone. Every byte that an NPU, or the NPUs of a host together, must receive
comes over links that enter it, no faster than their rates. S is the whole buffer, as `bytes` of collectives.parquet.
In an all-reduce, which switches may do (S each way), each member must receive S. In an all-gather it receives S / n of
each other member, and its host that of each member outside, once; a reduce-scatter is this the other way round. In an
all-to-all each member of a host receives S / n of each member outside.
"""

import functools
import json
from collections import Counter

import numpy as np
import pyarrow.parquet as pq

from nadi.topologies.graph import NVSWITCH

SHARED = {"all-gather", "reduce-scatter", "all-to-all"}
"""Kinds of which a member receives, or sends, S / n of each of the n - 1 others."""
WHOLE = {"all-reduce", "broadcast", "reduce"}
"""Kinds of which one member at least receives S."""


def broken(folder, graph):
    """Return what does not hold in a folder of results, "" if all does; graph: the fabric of the run."""
    return "; ".join([*_sums(folder), *_below_bounds(folder, graph)])


def _sums(folder):
    """Compare the table of messages with the summary's numbers of messages and of their bytes."""
    summary = json.loads((folder / "summary.json").read_text())
    if summary["network"] == "closed-form" or summary["config"]["network"].get("collectives") == "coupled":
        return  # their tables have messages between two NPUs alone
    flows = pq.read_table(folder / "flows.parquet", columns=["bytes"])
    found = {"flows": flows.num_rows, "payload_bytes": sum(flows["bytes"].to_pylist())}
    for key, number in found.items():
        if number != summary[key]:
            yield f"{number} {key} in flows.parquet, {summary[key]} in summary.json"


def _below_bounds(folder, graph):
    """Find collectives that took less time than their bytes at the rates of the links of one member, or of a host."""
    network = json.loads((folder / "summary.json").read_text())["config"]["network"]
    if network.get("congestion_aware") is False:  # then messages on one link at one time take nothing from each other
        return
    groups = _groups(folder)
    for row in pq.read_table(folder / "collectives.parquet").to_pylist():
        group = groups[row["group"]]
        assert len(group) == row["members"], row
        bound_ps = max(_bounds_ps(row["kind"], row["bytes"], group, graph), default=0)
        if row["finish_ps"] - row["start_ps"] < bound_ps:
            yield f"{row} takes less than its lower bound of {bound_ps:.0f} ps"


def _groups(folder):
    table = pq.read_table(folder / "nodes.parquet", columns=["npu", "group"], filters=[("kind", "=", "collective")])
    found = {}
    for npu, group in zip(table["npu"].to_pylist(), table["group"].to_pylist(), strict=True):
        found.setdefault(group, set()).add(npu)
    return {group: sorted(npus) for group, npus in found.items()}


def _bounds_ps(kind, size, group, graph):
    """Return lower bounds in ps of a collective of `size` bytes: of a member's links, and of those of each host."""
    n = len(group)
    members_of_host = Counter(int(graph.host[npu]) for npu in group)
    if n > 1 and kind in WHOLE | SHARED:
        member_bytes = size if kind in WHOLE else size * (n - 1) / n
        yield member_bytes * 8e12 / max(member_rates_bps(graph)[npu] for npu in group)
        for host, members in members_of_host.items():
            if members < n:
                host_bytes = size if kind in WHOLE else size * (n - members) / n
                host_bytes *= members if kind == "all-to-all" else 1
                yield host_bytes * 8e12 / host_rates_bps(graph)[host]


@functools.cache
def member_rates_bps(graph):
    src = graph.link_src[graph.link_src < graph.npus]
    return np.bincount(src, graph.link_rate_bps[graph.link_src < graph.npus], graph.npus)


@functools.cache
def host_rates_bps(graph):
    """Return the sum of the rates of the links that leave each host, those to its NVSwitches left out, in bit/s."""
    found = dict.fromkeys(graph.host.tolist(), 0)
    for src, dst, rate_bps in zip(
        graph.link_src.tolist(), graph.link_dst.tolist(), graph.link_rate_bps.tolist(), strict=True
    ):
        if src < graph.npus and graph.node_kind[dst] != NVSWITCH:
            leaves = dst >= graph.npus or graph.host[dst] != graph.host[src]
            found[int(graph.host[src])] += rate_bps if leaves else 0
    return found

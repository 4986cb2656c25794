"""Text of `nadi topology show`: the facts of topologies.describe with labels and units."""

from collections.abc import Mapping
from typing import Any

from nadi.terminal import amount_text, rate_text, time_text
from nadi.topologies import Graph

_MAX_NAMES = 8


def labelled(facts: Mapping[str, Any], graph: Graph) -> list[tuple[str, str]]:
    """Return labels and values of the result of topologies.describe for a fabric, in the order of the table.

    Args:
        facts: Result of topologies.describe.
        graph: The fabric (`Graph`).
    """
    switches = ", ".join(f"{count:,} {name}" for name, count in facts["switches"].items())
    cables = ", ".join(f"{count:,} of {rate_text(int(rate))}" for rate, count in facts["rates_bps"].items())
    min_ps, max_ps, hops = facts["min_delay_ps"], facts["max_delay_ps"], facts["diameter_hops"]
    rows = [
        ("fabric", facts["name"]),
        ("NPUs", f"{facts['npus']:,}"),
        *([("accelerator", graph.accelerator.upper())] if graph.accelerator else []),
        ("logical dimensions", "x".join(map(str, facts["dims"]))),
        ("hosts", f"{facts['hosts']:,}"),
        ("pods", f"{facts['pods']:,}" if facts["pods"] else "none"),
        ("switches", switches or "none"),
        ("nodes", f"{facts['nodes']:,}, NPUs and switches"),
        ("names of nodes", _names(graph)),
        ("cables", cables or "none"),
        ("links", f"{facts['links']:,}, two to a cable"),
        ("delay of a cable", " to ".join(dict.fromkeys((time_text(min_ps), time_text(max_ps))))),
        ("longest path", f"{hops} hop{'s' if hops != 1 else ''}"),
        ("equal next links", f"{facts['ecmp_width']} at most"),
        ("routing", "shortest paths, by table" if facts["routing"] == "table" else f"by dimension, {facts['routing']}"),
        ("routing tables", amount_text(facts["routing_bytes"])),
        ("bisection", f"{rate_text(facts['bisection_bps'])} one way"),
    ]
    if "oversubscription" in facts:
        ratios = [f"{ratio:.3g}:1 at a {switch}" for switch, ratio in facts["oversubscription"].items()]
        rows.append(("oversubscription", ", ".join(ratios) or "none, as no switch has uplinks"))
    for tier in facts.get("tiers", ()):
        what = f"{tier['cables']:,} cables, {rate_text(tier['rate_bps'])} one way"
        below = tier["tier"]  # distance of the lower end in links from an NPU
        kind = "NVSwitch" if tier["to_nvswitches"] else "switch"
        rows.append((f"{kind} tier {below} to {below + 1}" if below else f"NPUs to {kind}es", what))
    return rows


def _names(graph: Graph) -> str:
    """Return the first node of each kind, as reports and [[faults]] name it."""
    first: dict[str, str] = {}
    for node in (0, *range(graph.npus, graph.nodes)):
        name = graph.node_name(node)
        first.setdefault(name.rpartition(" ")[0] or name, name)
    more = ["..."] if len(first) < graph.nodes else []
    return ", ".join([*list(first.values())[:_MAX_NAMES], *more])

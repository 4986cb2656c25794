"""Halving and doubling: pairs exchange halves of the data that they still have to sum, then gather by doubling.

This is Rabenseifner's all-reduce; reduce-scatter and all-gather are its halves. If n is not a power of two, the largest
power below runs the rounds of all-reduce, and the other members fold in and out (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005, section 4.5). The halves alone are then Bruck's
rounds, which need no folding.
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans import exchanges
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans

KINDS = ("all-reduce", "reduce-scatter", "all-gather")


def plan(kind: str, members: int) -> Plans:
    """Return each member's steps: a lane per round, the farthest peer first; all-gather begins with the nearest.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    core = exchanges.power_below(members)
    if kind == "all-reduce":
        return exchanges.exchanged(members, core, lambda me: exchanges.halving(me, core) + exchanges.doubling(me, core))
    if core != members:
        return (exchanges.reduced if kind == "reduce-scatter" else exchanges.gathered)(
            members, exchanges.near_first(members)
        )
    rounds = exchanges.halving if kind == "reduce-scatter" else exchanges.doubling
    return exchanges.exchanged(members, members, lambda me: rounds(me, members))


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    core = exchanges.power_below(members)
    if kind != "all-reduce" and core != members:
        return exchanges.spreading_extent(members, exchanges.near_first(members))
    return exchanges.exchange_extent(members, (core.bit_length() - 1) * (2 if kind == "all-reduce" else 1))


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the ps 2 log2(n) a + 2 (n-1) S/nB of n members, latency a, S bytes, rate B; half of it for the halves.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    # For n = p + r, r > 0, p = 2^i, the halves take ceil(log2 n) a + (n-1) S/nB; all-reduce takes the time of p,
    # 2 (a + S/B) for folding, and S/2B for the data that members without a guest have sent to a host meanwhile.
    if kind != "all-reduce":
        return exchanges.rounds_ps(members, exchanges.near_first(members), size_bytes, latency_ps, bytes_per_s)
    core = exchanges.power_below(members)
    unit_ps = size_bytes / bytes_per_s * PS_PER_S
    rounds_of_core_ps = 2 * (core.bit_length() - 1) * latency_ps + 2 * (core - 1) / core * unit_ps
    return rounds_of_core_ps + (2 * latency_ps + 2.5 * unit_ps if members > core else 0.0)

"""Recursive doubling: in each of log2 n rounds pairs exchange all their data, which doubles.

If n is not a power of two, the largest power below runs the rounds, and the other members fold in and out (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.5). All-gather
then uses Bruck's rounds, since a folded member's block is not next to its host's.
"""

from nadi.inputs.units import PS_PER_S
from nadi.workload.collectives.plans import exchanges
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans

KINDS = ("all-reduce", "all-gather", "barrier")


def plan(kind: str, members: int) -> Plans:
    """Return each member's steps: a lane per round, the farthest first, but the nearest first for all-gather.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    core = exchanges.power_below(members)
    if kind != "all-gather":
        distances = [1 << k for k in reversed(range(core.bit_length() - 1))]
        return exchanges.exchanged(
            members,
            1,
            lambda me: [exchanges.FoldingRound(me ^ distance, (0, 1), (0, 1), reduce=True) for distance in distances],
        )
    if core != members:
        return exchanges.gathered(members, exchanges.near_first(members))
    return exchanges.exchanged(members, members, lambda me: exchanges.doubling(me, members))


def extent(kind: str, members: int) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
    """
    core = exchanges.power_below(members)
    if kind == "all-gather" and core != members:
        return exchanges.spreading_extent(members, exchanges.near_first(members))
    return exchanges.exchange_extent(members, core.bit_length() - 1)


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """Return the ps log2(n)(a + S/B) of n members, a latency a and S bytes at a rate B.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
    """
    # All-gather: ceil(log2 n) a + (n-1) S/nB. With p a power of two, n = p + r, r > 0: the maximum of
    # (ceil(log2 r) + 2) a + (log2(p) + 3) S/B and (log2(p) + 1) a + (log2(p) + 2) S/B. Members without a guest begin at
    # once, so that rounds begin before the folding ends; their data and the guest's then share the host's receiver.
    if kind == "all-gather":
        return exchanges.rounds_ps(members, exchanges.near_first(members), size_bytes, latency_ps, bytes_per_s)
    message_ps = 0.0 if kind == "barrier" else size_bytes / bytes_per_s * PS_PER_S
    core = exchanges.power_below(members)
    rounds, guests = core.bit_length() - 1, members - core
    if guests == 0:
        return rounds * (latency_ps + message_ps)
    # Hosts with guests start a latency later, and their receivers take the guest's data besides the rounds
    through_hosts_ps = ((guests - 1).bit_length() + 2) * latency_ps + (rounds + 3) * message_ps
    return max(through_hosts_ps, (rounds + 1) * latency_ps + (rounds + 2) * message_ps)

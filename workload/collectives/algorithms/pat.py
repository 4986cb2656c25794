"""PAT, parallel aggregated trees: a binomial tree from each member, all of them at once, far hops first.

All-gather: messages over far hops have few blocks; those to the neighbours have n/2. Blocks of all trees with the same
hop at the same time are one message, of at most `aggregation` blocks; more blocks take several messages. Reduce-scatter
is the same backwards (Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv
2506.20252, 2025).
"""

from nadi.workload.collectives.plans.exchanges import far_first, gathered, reduced, rounds_ps, spreading_extent
from nadi.workload.collectives.plans.extent import PlanExtent
from nadi.workload.collectives.plans.plan import Plans

KINDS = ("all-gather", "reduce-scatter")
PARAMETERS = {"aggregation": 0}
LIMITS = {"aggregation": (0, 1 << 20)}


def plan(kind: str, members: int, aggregation: int = 0) -> Plans:
    """Return each member's steps, a lane per distance.

    Args:
        kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        aggregation: The maximum number of blocks of a message; 0 = no limit.
    """
    make = gathered if kind == "all-gather" else reduced
    return make(members, far_first(members, aggregation or members))


def extent(_kind: str, members: int, aggregation: int = 0) -> PlanExtent:
    """Return the number of steps and lanes of `plan`.

    Args:
        _kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        aggregation: The maximum number of blocks of a message; 0 = no limit.
    """
    return spreading_extent(members, far_first(members, aggregation or members))


def closed_form(
    _kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float, aggregation: int = 0
) -> float:
    """Return ceil(log2 n) a + (n-1) S/nB; with aggregation, a for each message of a round.

    Args:
        _kind: The kind of collective, one of KINDS.
        members: The number of members of the group, n.
        size_bytes: The size of the whole buffer S in bytes.
        latency_ps: The time of an empty message on an idle network in picoseconds.
        bytes_per_s: The rate at which every member sends and receives, in bytes per second.
        aggregation: The maximum number of blocks of a message; 0 = no limit.
    """
    return rounds_ps(members, far_first(members, aggregation or members), size_bytes, latency_ps, bytes_per_s)

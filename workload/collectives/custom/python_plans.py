"""Algorithms that are Python objects, not files: `custom:plans=DIGEST`, where the digest is that of the plans.

Run files and results hold algorithms as text. Plans made in Python are therefore kept here under a digest of all their
contents: equal plans have equal names, and a name never refers to other plans.
"""

import hashlib
from collections import OrderedDict

from nadi.workload.collectives.custom.export import check_races, check_result, flow_of
from nadi.workload.collectives.plans.plan import Plans
from nadi.workload.errors import WorkloadError
from nadi.workload.kinds import kind_index

MAX_KEPT = 256  # number of plans that are kept, the most recent ones; a search over algorithms must not fill the memory

_kept: "OrderedDict[str, Plans]" = OrderedDict()
_checked: dict[tuple[str, str], None] = {}


def keep(plans: Plans, kind: str) -> str:
    """Check plans made in Python, keep them, and return their name in run files: "custom:plans=<digest>".

    The name is valid in this process and its forks. Raises WorkloadError: unknown kind; or the plans do something else,
    have unmatched messages, wait for each other, or use a chunk twice at a time.

    Args:
        plans: The plans of all members.
        kind: The kind of collective, one of workload.KINDS.
    """
    kind_index(kind)
    digest = _digest(plans)
    if (digest, kind) not in _checked:
        if not plans.relative:
            check_races(flow_of(plans, _name), plans, _name)
        check_result(plans, kind, f"plans of {plans.members} members")
        _checked[digest, kind] = None
    _kept[digest] = plans
    _kept.move_to_end(digest)
    while len(_kept) > MAX_KEPT:
        _kept.popitem(last=False)
    return f"custom:plans={digest}"


def given(digest: str) -> Plans:
    """Return the plans of a digest. Raises WorkloadError: this process has no such plans.

    Args:
        digest: The digest in the name that `keep` has returned.
    """
    if digest not in _kept:
        raise WorkloadError(f"algorithm 'custom': plans {digest!r} were made in Python, and only that process has them")
    return _kept[digest]


def _name(member: int, lane: int, number: int) -> str:
    return f"plans: member {member}, lane {lane}, step {number}"


def _digest(plans: Plans) -> str:
    """Return a digest of all contents of plans."""
    digest = hashlib.blake2b(digest_size=12)
    numbers = (plans.members, plans.chunks, plans.relative, plans.regions, plans.launch_ps, plans.aggregators)
    lanes = [[[tuple(step) for step in lane] for lane in own] for own in plans.plans]
    views = [(view.size, view.member.tolist(), view.part.tolist(), view.parts) for view in plans.views]
    attributes = [tuple(plans.attributes_of(plan)) for plan in range(len(plans.plans))]
    arrangements = [order.tolist() for order in plans.arrangements]
    digest.update(repr((numbers, plans.uneven, lanes, attributes, views, arrangements)).encode())
    return digest.hexdigest()

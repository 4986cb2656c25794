"""Algorithms that are values, not files: `custom:plans=DIGEST`, where the digest is of the plans themselves.

A specification is text, as run files and results hold it. So plans that Python gives are kept here under a digest of
all that they say: equal plans have equal names, and no name ever means other plans.
"""

import hashlib
from collections import OrderedDict

from workload.collectives.custom.flow import check_races, flow_of
from workload.collectives.plans.plan import Plans
from workload.collectives.schedules.oracle import OracleError, check
from workload.collectives.schedules.packed import pack
from workload.errors import WorkloadError
from workload.kinds import kind_index

MOST_KEPT = 256
"""The last ones; a search over algorithms must not fill the memory."""
_LONGEST_REASON = 160

_kept: "OrderedDict[str, Plans]" = OrderedDict()
_checked: dict[tuple[str, str], None] = {}


def keep(plans: Plans, kind: str) -> str:
    """Check that plans do what a kind promises, and keep them.

    Args:
        plans: of `workload.everyone_alike` or `workload.each_its_own`.
        kind: see workload.kinds.KINDS.

    Returns:
        What run files write for the algorithm: "custom:plans=<digest>"; it holds in this process and its forks.

    Raises:
        WorkloadError: no such kind; or the plans do something else, are not matched, wait for each other, or use a
            chunk twice at a time.
    """
    kind_index(kind)
    digest = _digest(plans)
    if (digest, kind) not in _checked:
        _check(plans, kind)
        _checked[digest, kind] = None
    _kept[digest] = plans
    _kept.move_to_end(digest)
    while len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    return f"custom:plans={digest}"


def given(digest: str) -> Plans:
    """The plans of a digest.

    Raises:
        WorkloadError: this process has none.
    """
    if digest not in _kept:
        raise WorkloadError(f"algorithm 'custom': plans {digest!r} were made in Python, and only that process has them")
    return _kept[digest]


def _check(plans: Plans, kind: str) -> None:
    if not plans.relative:
        flow = flow_of(plans, _name)
        check_races(flow, plans, _name)
    try:
        check(kind, pack([plans]), 0)
    except OracleError as error:
        reason = str(error)
        shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
        raise WorkloadError(f"plans of {plans.members} members: no {kind}: {shown}") from None


def _name(member: int, lane: int, number: int) -> str:
    return f"plans: member {member}, lane {lane}, step {number}"


def _digest(plans: Plans) -> str:
    """Of all that plans say."""
    of_all = hashlib.blake2b(digest_size=12)
    numbers = (plans.members, plans.chunks, plans.relative, plans.regions, plans.launch_ps, plans.aggregators)
    lanes = [[[tuple(step) for step in lane] for lane in own] for own in plans.plans]
    views = [(view.size, view.member.tolist(), view.part.tolist(), view.parts) for view in plans.views]
    attributes = [tuple(plans.attributes_of(plan)) for plan in range(len(plans.plans))]
    arrangements = [order.tolist() for order in plans.arrangements]
    of_all.update(repr((numbers, plans.uneven, lanes, attributes, views, arrangements)).encode())
    return of_all.hexdigest()

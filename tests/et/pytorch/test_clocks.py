import numpy as np
import pytest

from nadi.et.pytorch.comms import Comm
from nadi.et.pytorch.ranks import estimate, waited_and_early_ns
from nadi.et.schema import CollectiveCommType as Kind


def executed(start_ns, end_ns):
    return Comm(call=None, issuer=-1, name="", start_ns=start_ns, end_ns=end_ns)


def test_offsets_of_clocks_are_found_and_removed():
    rng = np.random.default_rng(1)
    offsets = {0: 0, 1: 7_000_000, 2: -3_000_000}
    instances = []
    for moment in range(0, 10**9, 10**7):
        end = {rank: moment + int(rng.integers(0, 20_000)) for rank in offsets}
        own = {rank: end[rank] - offset for rank, offset in offsets.items()}
        instances.append({rank: executed(own[rank] - 10**6, own[rank]) for rank in offsets})
    first = [{rank: taken for rank, taken in some.items() if rank < 2} for some in instances]
    second = [{rank: taken for rank, taken in some.items() if rank > 0} for some in instances]
    clocks = estimate([0, 1, 2, 5], first + second)  # ranks 0 and 2 share none
    assert clocks.offset_ns == pytest.approx(offsets | {5: 0}, abs=20_000)
    assert clocks.unknown == (5,)
    hosts = {0: "a", 1: "b", 2: "b", 5: "b"}
    assert clocks.significant(hosts) == clocks.offset_ns
    assert set(clocks.significant(dict.fromkeys(hosts, "a")).values()) == {0}


def test_an_offset_no_larger_than_chance_is_not_significant():
    ends = [0, 100, -90, 110, -80]
    clocks = estimate([0, 1], [{0: executed(-9, 0), 1: executed(-9, end)} for end in ends])
    assert clocks.spread_ns[1] > 0
    assert clocks.significant({0: "", 1: ""}) == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("kind", "root", "waited"),
    [
        (Kind.ALL_REDUCE, None, {0: 30, 1: 20, 2: 0}),
        (Kind.BROADCAST, 1, {0: 10, 1: 0, 2: 0}),
        (Kind.REDUCE, 0, {0: 30, 1: 0, 2: 0}),
    ],
)
def test_members_wait_for_those_whom_they_need(kind, root, waited):
    instance = {0: executed(0, 100), 1: executed(10, 100), 2: executed(30, 100)}
    assert waited_and_early_ns(kind, instance, dict.fromkeys(instance, 0), root)[0] == waited
    shifted = {0: executed(0, 100), 1: executed(10, 100), 2: executed(1030, 1100)}
    assert waited_and_early_ns(kind, shifted, {0: 0, 1: 0, 2: -1000}, root)[0] == waited

"""What is in a pass, told as bags: operations, their classes, and how many of each, in no order.

A long pass repeats something, layers mostly. It is told in parts, each of which ends with an event of one and the same
operation and class, the pass's *landmark*: the one with which it takes the fewest bits to say what is in the parts and
in which of all orders that has come (minimum description length: Rissanen, Automatica 14, 1978). So nobody has to know
what a layer is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from et.synthesis.streams import Operation

Valued = tuple[Operation, int]
"""An operation and the class of its value."""
Bag = tuple[tuple[Operation, int, int], ...]
"""Operation, class (et.synthesis.classes) and how many; ascending."""
Parts = tuple[Bag, ...]
_MANY_PARTS = 4
_STRETCHED = 0.05


def parts_of(events: Sequence[Valued]) -> Parts:
    """What is in a pass, in the parts of its landmark; one if that takes the fewest bits."""
    many = Counter(events)
    landmarks = [None, *(each for each, times in many.items() if times > 1)]
    return min((_split(events, each) for each in landmarks), key=lambda parts: _bits(parts, len(many)))


def events_in(parts: Iterable[Bag]) -> int:
    """How many events parts have."""
    return sum(many for bag in parts for _, _, many in bag)


def parts_bits(passes: Sequence[Parts]) -> float:
    """What it costs to say the parts of passes: each different bag once, then which come, and how many in a row.

    Bags are pairs of operation and class with their number; numbers are in Elias's gamma code.
    """
    different = {bag for parts in passes for bag in parts}
    pairs = len({(operation, token) for bag in different for operation, token, _ in bag})
    bits: float = sum(_bag_bits(bag, pairs) for bag in different)
    seen: Counter[Parts] = Counter()
    for parts, run in groupby(passes):
        bits += _gamma_bits(len(list(run))) + 1
        bits += math.log2(len(seen)) if seen[parts] else _runs_bits(parts, len(different))
        seen[parts] += 1
    return bits


def stretched(parts: Parts, stretch: float) -> Parts:
    """About so many times as many events: more or fewer parts where there are many, and then of each class."""
    wanted = stretch * events_in(parts)
    if len(parts) >= _MANY_PARTS:
        many = max(round(stretch * len(parts)), 1)
        parts = tuple(parts[number * len(parts) // many] for number in range(many))
    left = wanted / max(events_in(parts), 1)
    return parts if abs(left - 1) <= _STRETCHED else tuple(_stretched(bag, left) for bag in parts)


def _split(events: Sequence[Valued], landmark: Valued | None) -> Parts:
    found: list[Counter[Valued]] = [Counter()]
    for event in events:
        found[-1][event] += 1
        if event == landmark:
            found.append(Counter())
    return tuple(
        tuple(sorted((operation, token, many) for (operation, token), many in part.items())) for part in found if part
    )


def _bits(parts: Parts, pairs: int) -> float:
    """Of parts, and of their events' order by chance."""
    different = set(parts)
    bits: float = sum(_bag_bits(bag, pairs) for bag in different) + _runs_bits(parts, len(different))
    return bits + sum(_order_bits(bag) for bag in parts)


def _bag_bits(bag: Bag, pairs: int) -> float:
    return _gamma_bits(len(bag) + 1) + sum(math.log2(pairs) + _gamma_bits(many) for *_, many in bag)


def _runs_bits(parts: Parts, different: int) -> float:
    runs = [len(list(run)) for _, run in groupby(parts)]
    return _gamma_bits(len(runs) + 1) + sum(_gamma_bits(many) + math.log2(different) for many in runs)


def _order_bits(bag: Bag) -> float:
    """log2 of how many orders there are of what is in a bag."""
    counts = [many for *_, many in bag]
    return (math.lgamma(sum(counts) + 1) - sum(math.lgamma(many + 1) for many in counts)) / math.log(2)


def _stretched(bag: Bag, stretch: float) -> Bag:
    """So many times as many of each class; all together to the nearest number, at least one."""
    exact = [stretch * many for _, _, many in bag]
    counts = [int(many) for many in exact]
    missing = max(round(sum(exact)), 1) - sum(counts)
    for at in sorted(range(len(bag)), key=lambda at: counts[at] - exact[at])[:missing]:
        counts[at] += 1
    return tuple((operation, token, many) for (operation, token, _), many in zip(bag, counts, strict=True) if many)


def _gamma_bits(number: int) -> int:
    """Bits of a number of at least 1 in Elias's gamma code."""
    return 2 * int(math.log2(number)) + 1

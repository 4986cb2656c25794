"""The contents of a pass as bags: operations with classes and their counts, without an order.

A long pass repeats something, usually layers. It is divided into parts that all end with the same operation and class,
the *landmark* of the pass: the one with which the fewest bits describe the contents of the parts and the order of their
events (minimum description length: Rissanen, Automatica 14, 1978). So the method needs no definition of a layer.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from nadi.et.synthesis.streams import Operation

ClassifiedOperation = tuple[Operation, int]  # an operation and the class of its value
Bag = tuple[tuple[Operation, int, int], ...]  # operation, class (`et.synthesis.request`) and count, ascending
Parts = tuple[Bag, ...]
_MANY_PARTS = 4  # number of parts from which a stretched pass has more or fewer parts instead of larger or smaller ones
_TOLERANCE = 0.05  # relative deviation from the wanted number of events that needs no change of parts


def divisions_of(pass_events: Sequence[ClassifiedOperation]) -> list[list[int]]:
    """Return the possible divisions of a pass into parts, each as the end of every part.

    There is one for each possible landmark (a repeated event), and the division into one part.

    Args:
        pass_events: The events of the pass in order.
    """
    landmarks = [None, *(each for each, count in Counter(pass_events).items() if count > 1)]
    divisions = []
    for landmark in landmarks:
        ends = [at for at, event in enumerate(pass_events, 1) if event == landmark]
        divisions.append(ends if not pass_events or ends[-1:] == [len(pass_events)] else [*ends, len(pass_events)])
    return divisions


def ends_of_parts(pass_events: Sequence[ClassifiedOperation]) -> list[int]:
    """Return the division of a pass that takes fewest bits to describe.

    Args:
        pass_events: The events of the pass in order.
    """
    distinct = len(set(pass_events))
    return min(divisions_of(pass_events), key=lambda ends: _bits(parts_of(pass_events, ends), distinct))


def parts_of(pass_events: Sequence[ClassifiedOperation], ends: Sequence[int] | None = None) -> Parts:
    """Return the bag of each part of a pass.

    Args:
        pass_events: The events of the pass in order.
        ends: The number of events up to the end of each part; None = those of `ends_of_parts`.
    """
    ends = ends_of_parts(pass_events) if ends is None else ends
    parts = (Counter(pass_events[begin:end]) for begin, end in zip([0, *ends], ends, strict=False))
    return tuple(tuple(sorted((*each, count) for each, count in part.items())) for part in parts)


def events_in(parts: Iterable[Bag]) -> int:
    """Return the number of events in parts.

    Args:
        parts: Bags of events.
    """
    return sum(count for bag in parts for _, _, count in bag)


def stretched(parts: Parts, factor: float) -> Parts:
    """Return parts with more or fewer events: with other numbers of parts first, then with larger parts.

    Args:
        parts: The parts of a pass.
        factor: The wanted number of events, relative to the number in `parts`.
    """
    target = factor * events_in(parts)
    if len(parts) >= _MANY_PARTS:
        count = max(round(factor * len(parts)), 1)
        # Repeat or omit parts evenly
        parts = tuple(parts[number * len(parts) // count] for number in range(count))
    remaining = target / max(events_in(parts), 1)
    return parts if abs(remaining - 1) <= _TOLERANCE else tuple(_scaled(bag, remaining) for bag in parts)


def _bits(parts: Parts, num_distinct_events: int) -> float:
    """Return the bits that describe parts and one order of their events.

    Each distinct bag is described once, then the runs of equal bags; numbers are in Elias's gamma code.
    """
    distinct = set(parts)
    # Equal layers in a row are one run, which costs the bits of its length only: layers are cheap landmarks
    runs = [len(list(run)) for _, run in groupby(parts)]
    bits: float = _gamma_bits(len(runs) + 1) + sum(_gamma_bits(run) + math.log2(len(distinct)) for run in runs)
    for bag in distinct:
        bits += _gamma_bits(len(bag) + 1) + sum(
            math.log2(num_distinct_events) + _gamma_bits(count) for *_, count in bag
        )
    for bag in parts:  # log2 of the number of orders of its events
        counts = [count for *_, count in bag]
        bits += (math.lgamma(sum(counts) + 1) - sum(math.lgamma(count + 1) for count in counts)) / math.log(2)
    return bits


def _scaled(bag: Bag, factor: float) -> Bag:
    """Return a bag with `factor` times the count of each class; the sum is the nearest integer, at least 1."""
    exact = [factor * count for _, _, count in bag]
    counts = [int(count) for count in exact]
    # The largest remainders are rounded up
    missing = max(round(sum(exact)), 1) - sum(counts)
    for at in sorted(range(len(bag)), key=lambda at: counts[at] - exact[at])[:missing]:
        counts[at] += 1
    pairs = zip(bag, counts, strict=True)
    return tuple((operation, number, count) for (operation, number, _), count in pairs if count)


def _gamma_bits(number: int) -> int:
    """Return the bits of a number of at least 1 in Elias's gamma code."""
    return 2 * int(math.log2(number)) + 1

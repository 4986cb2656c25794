"""Links between host operators of the execution trace and operators of Kineto.

Operators are linked by record function id if Kineto has it (PyTorch 2.1 and later) and the ids of both traces fit.
Otherwise they are linked thread by thread and caller by caller, by the order and names of calls. Operators that only
one of the traces has (ProfilerStep, annotations) are ignored.
"""

import collections
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TypeVar

from nadi.et.pytorch.host_trace import HostOp, HostTrace
from nadi.et.pytorch.kineto import KinetoTrace

T = TypeVar("T")

BY_ID, BY_ORDER, NOT_AT_ALL = "record function id", "order and name", "not linked"


@dataclass
class Links:
    """Links between Kineto's operators and the host's."""

    host: dict[int, HostOp] = field(default_factory=dict)  # operator of the host, by the number of Kineto's operator
    way: str = NOT_AT_ALL  # BY_ID, BY_ORDER or NOT_AT_ALL (no host trace, or no operator fits)
    windows: int = 0  # number of places of the Kineto trace that the host trace fits equally well; the first is used

    def span_ns(self, kineto: KinetoTrace) -> tuple[int, int]:
        """Return when the first linked operator begins and when the last one ends, in ns; (0, 0) if none is linked.

        Args:
            kineto: The Kineto trace whose operators are linked.
        """
        begins = min((kineto.ops[i].start_ns for i in self.host), default=0)
        return begins, max((kineto.ops[i].end_ns for i in self.host), default=0)


def link(host: HostTrace | None, kineto: KinetoTrace) -> Links:
    """Link the operators of the host trace of a rank with those of its Kineto trace.

    Ids of traces that were not recorded together, or that count differently, fit some operators by chance. So if they
    fit fewer than half of the operators that could be linked, operators are also linked by order and name, and the
    better of the two results is used.

    Args:
        host: The host trace; None if the rank does not have one.
        kineto: The Kineto trace.
    """
    if host is None or not host.ops:
        return Links()
    # Equal ids count only together with equal names
    by_id = {op.rf_id: op for op in host.ops if op.rf_id > 0}
    found = {i: by_id[op.rf_id] for i, op in enumerate(kineto.ops) if by_id.get(op.rf_id) is not None}
    found = {i: op for i, op in found.items() if op.name == kineto.ops[i].name}
    links = Links(found, BY_ID) if found else Links()
    if 2 * len(links.host) >= min(len(host.ops), len(kineto.ops)):
        return links
    ordered = _by_order(host, kineto)
    return ordered if len(ordered.host) > len(links.host) else links


def is_of_a_part(links: Links, kineto: KinetoTrace) -> bool:
    """Return whether a host trace covers a part of the Kineto trace only, such as one of several steps.

    It does if it fits several places by order, or if most calls that launch something are before or after it.

    Args:
        links: The links between the two traces.
        kineto: The Kineto trace.
    """
    if not links.host:
        return False
    if links.windows > 1:
        return True
    begin_ns, end_ns = links.span_ns(kineto)
    launches = {op.correlation for op in kineto.device_ops}
    starts = [call.start_ns for call in kineto.calls if call.correlation in launches]
    return sum(begin_ns <= start_ns < end_ns for start_ns in starts) * 2 < len(starts)


def _by_order(host: HostTrace, kineto: KinetoTrace) -> Links:
    """Return the links by order and name between the pairs of threads whose operators have most names in common."""
    of_host: dict[int, list[HostOp]] = collections.defaultdict(list)
    of_kineto: dict[int, list[int]] = collections.defaultdict(list)
    for called in host.ops:
        of_host[called.thread].append(called)
    for number, op in enumerate(kineto.ops):
        of_kineto[op.thread].append(number)
    links = Links()
    for thread in sorted(of_host, key=lambda thread: -len(of_host[thread])):
        ops = of_host[thread]
        # Common names count as often as in both: 3 and 2 calls of aten::mm are 2
        names = collections.Counter(op.name for op in ops)
        matching_names = {
            t: sum((names & collections.Counter(kineto.ops[i].name for i in numbers)).values())
            for t, numbers in of_kineto.items()
        }
        best = max(matching_names, key=lambda t: (matching_names[t], -t), default=None)
        if best is None or not matching_names[best]:
            continue
        # A thread of one trace belongs to at most one of the other; those with the most operators choose first
        _link_thread(ops, of_kineto.pop(best), kineto, links)
    links.way = BY_ORDER if links.host else NOT_AT_ALL
    return links


def _link_thread(host_ops: Sequence[HostOp], kineto_numbers: Sequence[int], kineto: KinetoTrace, links: Links) -> None:
    """Add the links between operators of one thread, given in order of calls."""
    known = {op.name for op in host_ops} & {kineto.ops[i].name for i in kineto_numbers}
    left = [op for op in host_ops if op.name in known]
    right = [i for i in kineto_numbers if kineto.ops[i].name in known]
    names_left, names_right = [op.name for op in left], [kineto.ops[i].name for i in right]
    # A character per name: text search finds the whole sequence of calls fast
    character = {name: chr(number) for number, name in enumerate({*names_left, *names_right})}
    text, part = ("".join(character[name] for name in sequence) for sequence in (names_right, names_left))
    # The host trace may be one of several equal steps: find all its places
    places, at = [], text.find(part) if part else -1
    while at >= 0:
        places.append(at)
        at = text.find(part, at + len(part))
    begins = places
    if begins:
        links.windows = max(links.windows, len(begins))
        links.host.update(zip(right[begins[0] :], left, strict=False))
        return
    host_parent = {op.op_id: op.parent for op in host_ops}
    # No place has the whole sequence: compare calls caller by caller
    kept = {op.op_id for op in left}
    tops = _forest(left, lambda op: op.op_id, lambda op: _nearest(op.parent, kept, host_parent))
    kept_right = set(right)
    parents = {i: kineto.ops[i].parent for i in kineto_numbers}
    others = _forest(right, lambda i: i, lambda i: _nearest(kineto.ops[i].parent, kept_right, parents))
    links.host.update(_link_children(tops, others, kineto))


def _nearest(caller: int, kept_callers: set[int], caller_of: Mapping[int, int]) -> int:
    """Return the nearest of the kept callers from `caller` outwards, -1 = none."""
    steps = 0
    while caller not in kept_callers:
        if caller not in caller_of or steps > len(caller_of):  # a file may have a cycle
            return -1
        caller, steps = caller_of[caller], steps + 1
    return caller


def _forest(operators: Sequence[T], id_of: Callable[[T], int], caller_of: Callable[[T], int]) -> dict[int, list[T]]:
    """Return the operators that each caller's id has called, in order; -1 for those without a caller."""
    children: dict[int, list[T]] = collections.defaultdict(list)
    for item in operators:
        above = caller_of(item)
        children[-1 if above == id_of(item) else above].append(item)
    return children


def _link_children(
    host_children: Mapping[int, list[HostOp]], kineto_children: Mapping[int, list[int]], kineto: KinetoTrace
) -> dict[int, HostOp]:
    """Return the links from number to operator: what two linked callers have called, from the outermost (-1) on."""
    links: dict[int, HostOp] = {}
    waiting = [(-1, -1)]
    while waiting:
        host_caller, kineto_caller = waiting.pop()
        left, right = host_children.get(host_caller, []), kineto_children.get(kineto_caller, [])
        for a, b in _matches([op.name for op in left], [kineto.ops[i].name for i in right]):
            links[right[b]] = left[a]
            waiting.append((left[a].op_id, right[b]))
    return links


def _matches(items: Sequence[Hashable], others: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of places that hold equal items, in order."""
    if items == others:
        return [(i, i) for i in range(len(items))]
    # The longest common runs, in order
    blocks = SequenceMatcher(None, items, others, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]

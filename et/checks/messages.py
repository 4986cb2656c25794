"""Check for sends without receives and receives without sends.

Only sums of hashes are kept per pair of NPUs. Where a sum is not 0, the traces of that pair are opened again to find
the message.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from nadi.et.checking import Check, CheckContext, CheckedTrace
from nadi.et.checking.finding import ERROR, Example, Finding
from nadi.et.checking.matching import MessageSums, by_pair, message_sums

LOOKS_FOR = "sends without receives and receives without sends, by pair, tag, order and bytes"


_MAX_PAIRS_SHOWN = 20


class TraceCheck(Check):
    """Collects hashes of sends minus those of receives."""

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._sums: list[MessageSums] = []  # of each trace

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Add up the messages of a trace by peer and direction, and store the sums for each of its users.

        Args:
            checked: The trace to check.
        """
        if not self.sources.is_complete or len(checked.messages.row) == 0:
            return ()
        users, shifts = self.sources.users[checked.trace], self.sources.shifts(checked.trace)
        # Another check reports peers that do not exist
        self._sums.append(message_sums(checked.messages, users, shifts, self.sources.npus))
        return ()

    def end(self) -> Iterable[Finding]:
        """Return pairs with a sum that is not 0, with details on the first ones."""
        total = by_pair(self._sums)
        wrong = total.pair[total.sizes != 0]
        unread = np.concatenate([np.zeros(0, np.int64), *(self.sources.users[trace] for trace in self.context.unread)])
        # A trace that cannot be read lacks its ends of messages
        wrong = wrong[~np.isin(wrong // self.sources.npus, unread) & ~np.isin(wrong % self.sources.npus, unread)]
        if len(wrong):
            details = [self._examples(*divmod(int(pair), self.sources.npus)) for pair in wrong[:_MAX_PAIRS_SHOWN]]
            examples = tuple(example for of_pair in details for example in of_pair)
            yield Finding(ERROR, "pairs of NPUs have sends and receives that do not match", len(wrong), examples)

    def _examples(self, source: int, target: int) -> list[Example]:
        """Return the mismatches between two NPUs, tag by tag."""
        sends, receives = self._ends(source, target, of_sends=True), self._ends(target, source, of_sends=False)
        found = []
        for tag in sorted({tag for tag, _, _ in sends + receives}):
            # The n-th send with a tag belongs to the n-th receive with this tag
            sent = [(size, node) for t, size, node in sends if t == tag]
            taken = [(size, node) for t, size, node in receives if t == tag]
            pair = f"NPU {source} to NPU {target}, tag {tag}"
            if len(sent) != len(taken):
                extra = sent[len(taken) :] or taken[len(sent) :]
                path, node = extra[0][1]
                text = (
                    f"{pair}: {len(sent)} sends ({sum(s for s, _ in sent)} B), but {len(taken)} receives "
                    f"({sum(s for s, _ in taken)} B); this is the first without a counterpart"
                )
                found.append(Example(path, node, text))
                continue
            differ = [i for i, (a, b) in enumerate(zip(sent, taken, strict=True)) if a[0] != b[0]]
            if differ:
                i = differ[0]
                path, node = sent[i][1]
                swapped = Counter(s for s, _ in sent) == Counter(s for s, _ in taken)
                order = "; the same sizes occur in another order" if swapped else ""
                there = "{}: node {}".format(*taken[i][1])
                text = f"{pair}: send {i} has {sent[i][0]} B, but receive {i} {taken[i][0]} B ({there}){order}"
                found.append(Example(path, node, text))
        return found

    def _ends(self, npu: int, peer_npu: int, *, of_sends: bool) -> list[tuple[int, int, tuple[str, int]]]:
        """Return tag, bytes, file and node of the messages of an NPU with a peer, sends or receives, in order."""
        place = self.sources.place(npu)
        if place is None:
            return []
        checked = self.context.reopened(place[0])
        m = checked.messages
        shift = int(self.sources.shifts(place[0])[place[1]])
        at = m.with_peer(peer_npu - shift, is_send=of_sends).tolist()
        return [(int(m.tag[i]), int(m.size[i]), (checked.table.path, checked.node(int(m.row[i])))) for i in at]

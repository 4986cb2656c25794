"""Check for sends and receives whose peer is missing, unknown or the NPU itself, or that have another owner."""

from collections.abc import Iterable

import numpy as np

from nadi.et.checking import Check, CheckedTrace
from nadi.et.checking.finding import ERROR, Finding, at_nodes
from nadi.et.checking.matching import lack_peers, wrong_owners
from nadi.inputs.limits import TAGS

LOOKS_FOR = "sends and receives whose peer is missing, does not exist or is the NPU itself"


class TraceCheck(Check):
    """Reports messages; users of a shared trace shift all peers equally, so the first and last user represent all."""

    def trace(self, checked: CheckedTrace) -> Iterable[Finding]:
        """Return the messages with a wrong peer or tag.

        Args:
            checked: The trace to check.
        """
        table, messages = checked.table, checked.messages
        if len(messages.row) == 0:
            return
        missing = messages.peer < 0
        found = [
            ("messages have no peer", missing, lambda row: f"{_side(checked, row)} is missing, expected an NPU"),
            (
                "messages have a tag of 2^24 or more",
                messages.tag >= TAGS,
                lambda row: f"comm_tag is {table.comm_tag[row]}",
            ),
        ]
        if self.sources.is_complete:
            found += self._of_users(checked, missing)
        for what, wrong, text in found:
            yield from at_nodes(ERROR, what, table, messages.row[wrong], text)

    def _of_users(self, checked: CheckedTrace, has_no_peer: np.ndarray) -> list:  # type: ignore[type-arg]
        """Return the problems that depend on the NPUs that run the trace: title, mask of messages, text of a row."""
        table, messages = checked.table, checked.messages
        users, shifts = self.sources.users[checked.trace], self.sources.shifts(checked.trace)
        npus = self.sources.npus
        with_itself, of_others = wrong_owners(messages, users, shifts)

        def ends(row: int) -> str:
            """Return both ends of the message at a `row`."""
            return f"comm_src {table.comm_src[row]}, comm_dst {table.comm_dst[row]}"

        return [
            (
                "messages have a peer that has no trace",
                lack_peers(messages, shifts, npus) & ~has_no_peer,
                lambda row: f"{ends(row)}, but the traces are of {npus} NPUs",
            ),
            ("NPUs send to or receive from themselves", with_itself, lambda row: f"{ends(row)}, expected another peer"),
            (
                "messages name another NPU as their own",
                of_others,
                lambda row: f"{ends(row)}, but NPU {users[0]} runs it",
            ),
        ]


def _side(checked: CheckedTrace, row: int) -> str:
    """Return which attribute of a message's node names the peer, "comm_dst" or "comm_src"."""
    messages = checked.messages
    return "comm_dst" if messages.is_send[np.argmax(messages.row == row)] else "comm_src"

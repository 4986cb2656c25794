"""Sends and receives whose other end is nobody, their own NPU, or whose own end is another NPU."""

from collections.abc import Iterable

import numpy as np

from et.checking.check import Check
from et.checking.finding import ERROR, Finding, at_nodes
from et.checking.looked import CheckedTrace
from inputs.limits import TAGS

NAME = "peers"
LOOKS_FOR = "sends and receives whose peer is missing, does not exist or is the NPU itself"

"""The engine keeps tags in 24 bits."""


class Look(Check):
    """Peers of a shared trace shift by as much for all of a user's messages: the first and last user tell for all."""

    def trace(self, looked: CheckedTrace) -> Iterable[Finding]:
        """Each message apart."""
        table, messages = looked.table, looked.messages
        if len(messages.row) == 0:
            return
        missing = messages.peer < 0
        found = [
            ("messages have no peer", missing, lambda row: f"{_side(looked, row)} is missing, expected an NPU"),
            (
                "messages have a tag of 2^24 or more",
                messages.tag >= TAGS,
                lambda row: f"comm_tag is {table.comm_tag[row]}",
            ),
        ]
        if self.sources.whole:
            found += self._of_users(looked, missing)
        for what, wrong, text in found:
            yield from at_nodes(ERROR, what, table.path, table.node_id, messages.row[wrong], text)

    def _of_users(self, looked: CheckedTrace, missing: np.ndarray) -> list:  # type: ignore[type-arg]
        """What depends on the NPUs that run the trace."""
        table, messages = looked.table, looked.messages
        users, shifts = self.sources.users[looked.trace], self.sources.shifts(looked.trace)
        npus = self.sources.npus
        low, high = messages.peer + shifts.min(), messages.peer + shifts.max()
        beyond = ~missing & ((low < 0) | (high >= npus))
        own = np.where(messages.is_send, table.comm_src[messages.row], table.comm_dst[messages.row]).astype(np.int64)
        # shared and shifted: users minus shifts is the example, the same for all; as written: only one user may run it
        told = np.unique(users - shifts)
        itself = ~missing & np.isin(messages.peer, told)
        of_others = (own >= 0) & (~np.isin(own, told) | (len(told) > 1))

        def ends(row: int) -> str:
            return f"comm_src {table.comm_src[row]}, comm_dst {table.comm_dst[row]}"

        return [
            (
                "messages have a peer that no trace is of",
                beyond,
                lambda row: f"{ends(row)}, but the traces are of {npus} NPUs",
            ),
            ("NPUs send to or receive from themselves", itself, lambda row: f"{ends(row)}, expected another peer"),
            (
                "messages say that they are another NPU's",
                of_others,
                lambda row: f"{ends(row)}, but NPU {users[0]} runs it",
            ),
        ]


def _side(looked: CheckedTrace, row: int) -> str:
    """The attribute that names the peer."""
    messages = looked.messages
    return "comm_dst" if messages.is_send[np.argmax(messages.row == row)] else "comm_src"

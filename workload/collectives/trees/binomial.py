"""The binomial tree with root 0: member m hangs from m without its lowest bit.

Below a member come its own number with each bit below the lowest one, as far as there are members.
"""

from typing import NamedTuple


class BinomialBranch(NamedTuple):
    """A child and all below it: members child .. child + size - 1."""

    child: int
    size: int


def parent(member: int) -> int:
    """Of a member other than 0."""
    return member & (member - 1)


def branches(member: int, members: int) -> list[BinomialBranch]:
    """Of a member, the largest first."""
    below = member & -member if member else 1 << (members - 1).bit_length()
    found = []
    while below > 1:
        below >>= 1
        if member + below < members:
            found.append(BinomialBranch(member + below, min(below, members - member - below)))
    return found

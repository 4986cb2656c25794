"""The binomial tree with root 0: the parent of member m is m without its lowest set bit.

The subtree of a member contains its number with any of the bits below its lowest set bit, up to the number of members.
"""

from typing import NamedTuple


class BinomialBranch(NamedTuple):
    """A child and its subtree: members child .. child + size - 1."""

    child: int
    size: int


def parent(member: int) -> int:
    """Return the parent of a member other than 0."""
    return member & (member - 1)


def branches(member: int, members: int) -> list[BinomialBranch]:
    """Return the subtrees of a member's children, the largest first."""
    below = member & -member if member else 1 << (members - 1).bit_length()
    subtrees = []
    while below > 1:
        below >>= 1
        if member + below < members:
            subtrees.append(BinomialBranch(member + below, min(below, members - member - below)))
    return subtrees

"""The key, and what is derived from it: pseudonyms, numbers in a secret order, secret fractions.

Everything is HMAC-SHA256 (RFC 2104) of a domain and a value. Without the key, nobody can find the value of a pseudonym
by trying likely values, and equal values in two domains have different replacements.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import TypeVar

from nadi import inputs
from nadi.et.errors import TraceError

MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 1 << 20
_HOW = "make one with: head -c 32 /dev/urandom > FILE"
_PSEUDONYM_DIGITS = 16

Value = TypeVar("Value", str, int)


def read_secret(path: str | os.PathLike[str]) -> "SecretKey":
    """Return the key in a file.

    Args:
        path: A file of 16 bytes or more, whose content is the key.
    """
    with inputs.refusing(path, f"a file with a key; {_HOW}", TraceError):
        key = inputs.read_bytes(path, MAX_KEY_BYTES)
    if len(key) < MIN_KEY_BYTES:
        raise TraceError(f"{path}: a key of {len(key)} bytes, expected {MIN_KEY_BYTES} or more; {_HOW}")
    return SecretKey(key)


class SecretKey:
    """A secret key, and the replacements of values that follow from the key."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(key).digest()

    def digest(self, domain: str, value: str | int) -> bytes:
        """Return the 32 bytes that represent a value of a domain, a kind of values such as "name" or "tag".

        Args:
            domain: A kind of values, such as "name" or "tag"; equal values of two domains have different digests.
            value: The value to represent.
        """
        text = f"{domain}\0{value}".encode(errors="surrogatepass")
        return hmac.digest(self._key, text, "sha256")

    def pseudonym(self, domain: str, value: str) -> str:
        """Return 16 hexadecimal digits; among a million values two have the same digits once in 10^7 keys.

        Args:
            domain: A kind of values, as in `digest`.
            value: The value to replace.
        """
        return self.digest(domain, value).hex()[:_PSEUDONYM_DIGITS]

    def fraction(self, domain: str, value: str | int) -> float:
        """Return a pseudo-random number from 0 to 1 for a value.

        Args:
            domain: A kind of values, as in `digest`.
            value: The value to represent.
        """
        # 56 bits of the digest: a float holds 53
        return int.from_bytes(self.digest(domain, value)[:7]) / (1 << 56)

    def numbered(self, domain: str, values: Iterable[Value], first: int = 0) -> dict[Value, int]:
        """Return a number for each distinct value of a domain, from `first` on, in the order of their digests.

        Args:
            domain: A kind of values, as in `digest`.
            values: The values to number; repeated values count once.
            first: The smallest number.
        """
        ordered = sorted(set(values), key=lambda value: (self.digest(domain, value), value))
        return {value: first + place for place, value in enumerate(ordered)}

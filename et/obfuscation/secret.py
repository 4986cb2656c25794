"""The key, and what is derived from it: pseudonyms, numbers in a secret order, secret fractions.

All of it is HMAC-SHA256 (RFC 2104) of a domain and a value, so that nobody without the key can tell which value a
pseudonym stands for by trying likely ones, and equal values in two domains look different.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import TypeVar

import inputs
from et.errors import TraceError

MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 1 << 20
_HOW = "one is made by: head -c 32 /dev/urandom > FILE"
_PSEUDONYM_DIGITS = 16

Value = TypeVar("Value", str, int)


def read_secret(path: str | os.PathLike[str]) -> "SecretKey":
    """The key that a file holds, whatever its bytes are.

    Raises:
        TraceError: it cannot be read, or has fewer than 16 bytes.
    """
    try:
        key = inputs.read_bytes(path, MAX_KEY_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected a file with a key; {_HOW}") from error
    if len(key) < MIN_KEY_BYTES:
        raise TraceError(f"{path}: a key of {len(key)} bytes, expected {MIN_KEY_BYTES} or more; {_HOW}")
    return SecretKey(key)


class SecretKey:
    """A key and what it hides values behind."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(key).digest()

    def digest(self, domain: str, value: str | int) -> bytes:
        """32 bytes that stand for a value of a domain."""
        text = f"{domain}\0{value}".encode(errors="surrogatepass")
        return hmac.digest(self._key, text, "sha256")

    def pseudonym(self, domain: str, value: str) -> str:
        """16 hexadecimal digits; two of a million values share them once in 10^7 keys."""
        return self.digest(domain, value).hex()[:_PSEUDONYM_DIGITS]

    def fraction(self, domain: str, value: str | int) -> float:
        """A number from 0 to 1 that depends on the value and looks random."""
        return int.from_bytes(self.digest(domain, value)[:7]) / (1 << 56)

    def numbered(self, domain: str, values: Iterable[Value], first: int = 0) -> dict[Value, int]:
        """Each distinct value with its place, from `first` on, when all are sorted by what stands for them."""
        ordered = sorted(set(values), key=lambda value: (self.digest(domain, value), value))
        return {value: first + place for place, value in enumerate(ordered)}

"""Obfuscation of a trace by a level of fidelity and with a secret key: other names, ids, groups, tags and numbers."""

import dataclasses
import hashlib
import hmac
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.schema import ALL_NPUS, SCHEMA_VERSION
from nadi.et.table import NameTable, TraceTable
from nadi.inputs.arrays import Int32, Int64, UInt64

# The key, and what is derived from it: pseudonyms, numbers in a secret order, secret fractions.
#
# Everything is HMAC-SHA256 (RFC 2104) of a domain and a value. Without the key, nobody can find the value of a
# pseudonym by trying likely values, and equal values in two domains have different replacements.

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


Splits = tuple[int, ...]

_UNITS = {"comm_size": "bytes", "tensor_size": "bytes", "num_ops": "flops", "duration_micros": "micros"}
_BYTES_PER_SHARE = "bytes per share"
# Choices of Nadi; docs/explanation/synthetic-traces.md measures their effect.
_JITTER = 0.005
_BUCKETS_PER_OCTAVE = 4
_MAX_OCTAVES = 2.0  # a scale factor is from 2^-2 to 2^2
_FLAT = {"bytes": 1 << 16, "micros": 10, "flops": 10**9}
_LARGEST = 2**62  # of a replaced number, below the maximum of int64


@dataclass(frozen=True)
class Level:
    """Treatment of the numbers of a trace. Every level keeps the structure and hides names and shapes."""

    name: str  # name by which users choose the level
    meaning: str  # description in one line
    has_start_times: bool = False  # whether start times are kept, counted from the first one of all traces
    jitter: float = 0.0  # maximum relative deviation from 1 of the secret factor of each distinct number
    is_bucketed: bool = False  # whether numbers are rounded to the nearest of four per octave
    is_scaled: bool = False  # whether sizes, and times and operations, are multiplied by secret factors of 1/4 to 4
    is_flat: bool = False  # whether all numbers of a kind become the same

    @property
    def keeps_numbers(self) -> bool:
        """Whether sizes and times are kept."""
        return not (self.jitter or self.is_bucketed or self.is_scaled or self.is_flat)


LEVELS = {
    level.name: level
    for level in (
        Level("full", "sizes and times are kept, and so is the simulated time", has_start_times=True),
        Level("near", "each distinct size and time changes by up to 0.5 %, depending on the key", jitter=_JITTER),
        Level("coarse", "sizes and times are rounded to four steps per octave, up to 9 % off", is_bucketed=True),
        Level(
            "scaled",
            "as coarse, with all sizes and all times multiplied by secret factors",
            is_bucketed=True,
            is_scaled=True,
        ),
        Level("structure", "all sizes become 64 KiB, all times 10 microseconds", is_flat=True),
    )
}


def level_of(name: str) -> Level:
    """Return a level by its name; raise TraceError if no level has this name.

    Args:
        name: A key of LEVELS, as the user has typed it.
    """
    if name not in LEVELS:
        raise TraceError(f"fidelity {name!r}: expected one of {', '.join(LEVELS)}")
    return LEVELS[name]


def hidden(level: Level, secret: SecretKey, column: str, unit: str, values: Int64) -> Int64:
    """Return the replacements of numbers: equal numbers stay equal, positive ones stay positive; 0 and less are kept.

    Args:
        level: The level of fidelity, which determines the change.
        secret: The key that the changes depend on.
        column: A name for numbers with the same meaning, such as "comm_size"; equal numbers of two columns change
            differently.
        unit: The unit of the numbers: "bytes", "micros" or "flops".
        values: int64[...], the numbers to replace.
    """
    # A replacement costs a digest: compute it once per distinct number
    distinct, row = np.unique(values, return_inverse=True)
    found = [_hidden(level, secret, column, unit, value) if value > 0 else value for value in distinct.tolist()]
    return np.array(found, np.int64)[row].reshape(values.shape)


def _hidden(level: Level, secret: SecretKey, column: str, unit: str, value: int) -> int:
    """Return the replacement of one positive number, as `hidden` does."""
    if level.keeps_numbers:
        return value
    if level.is_flat:
        return _FLAT[unit]
    number = float(value)
    if level.is_bucketed:
        # The nearest of the numbers 2^(i / 4)
        number = float(2 ** (round(_BUCKETS_PER_OCTAVE * np.log2(number)) / _BUCKETS_PER_OCTAVE))
    if level.is_scaled:
        of_all = "sizes" if unit == "bytes" else "times"
        number *= 2 ** (_MAX_OCTAVES * (2 * secret.fraction("scale", of_all) - 1))
    number *= 1 + level.jitter * (2 * secret.fraction(column, value) - 1)
    return min(max(round(number), 1), _LARGEST)


@dataclass
class Vocabulary:
    """Values that the traces of a set use; it grows trace by trace, and keeps nothing else of them."""

    ids: UInt64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # uint64[], ids of nodes, ascending
    groups: set[str] = field(default_factory=set)  # names of groups except that of all NPUs
    tags: set[int] = field(default_factory=set)  # tags of messages
    first_start_micros: int = 0  # smallest start time that is not 0; 0 = no node has one

    def add(self, table: TraceTable) -> None:
        """Add the values that a trace uses.

        Args:
            table: A trace of the set.
        """
        if len(table) != len(self.ids) or np.any(self.ids != table.node_id):
            self.ids = np.union1d(self.ids, table.node_id)
        self.groups |= (set(table.group_names) | set(table.metadata_groups)) - {ALL_NPUS}
        self.tags |= set(np.unique(table.comm_tag[table.comm_tag >= 0]).tolist())
        starts = table.start_time_micros[table.start_time_micros > 0]
        if len(starts):
            first = int(starts.min())
            self.first_start_micros = min(first, self.first_start_micros or first)


class Obfuscation:
    """Replacement of values in all traces of a set, so that equal values have equal replacements in all traces."""

    def __init__(self, secret: SecretKey, level: Level, vocabulary: Vocabulary) -> None:
        self.secret = secret
        self.level = level
        # Replacement of each group's name, a number from 1 on, because other simulators expect numbers
        self.groups = {name: str(number) for name, number in secret.numbered("group", vocabulary.groups, 1).items()}
        self.groups[ALL_NPUS] = ALL_NPUS
        self.first_start_micros = vocabulary.first_start_micros
        self._ids = vocabulary.ids  # old ids, ascending
        number = secret.numbered("id", vocabulary.ids.tolist())
        # in the order of the old ones
        self._new_ids = np.array([number[value] for value in vocabulary.ids.tolist()], np.uint64)
        self._tags = secret.numbered("tag", vocabulary.tags)
        self._names: dict[str, bytes] = {}  # pseudonyms so far: many nodes share a name

    def ids(self, node_id: UInt64) -> UInt64:
        """Return uint64[n], the replacements of ids: 0 .. number of ids - 1 in a secret order.

        Args:
            node_id: uint64[n], ids that the vocabulary has.
        """
        return self._new_ids[np.searchsorted(self._ids, node_id)]

    def tags(self, tags: Int32) -> Int32:
        """Return int32[n], the replacements of tags; -1, absent, is kept.

        Args:
            tags: int32[n], tags of messages that the vocabulary has, -1 = absent.
        """
        distinct, row = np.unique(tags, return_inverse=True)
        return np.array([self._tags.get(tag, -1) for tag in distinct.tolist()], np.int32)[row]

    def names(self, names: Iterable[str]) -> NameTable:
        """Return the pseudonyms of node names; equal names have equal pseudonyms.

        Args:
            names: The names of the nodes, row by row.
        """
        found = []
        for name in names:
            if name not in self._names:
                self._names[name] = b"n" + self.secret.pseudonym("name", name).encode()
            found.append(self._names[name])
        return NameTable.of(found)

    def numbers(self, column: str, values: Int64) -> Int64:
        """Return int64[n], the replacements of sizes or times in a column of TraceTable.

        Args:
            column: A column of TraceTable: "comm_size", "tensor_size", "num_ops" or "duration_micros".
            values: int64[n], the values of the column.
        """
        return hidden(self.level, self.secret, column, _UNITS[column], values)


def obfuscate(table: TraceTable, obfuscation: Obfuscation) -> TraceTable:
    """Return an obfuscated trace; the order of rows, kinds, parents, peers, priorities and dimensions are kept.

    Args:
        table: The trace to obfuscate, which is not changed.
        obfuscation: The replacements, made from a vocabulary that includes this trace.
    """
    # The first start becomes 1, since 0 means that a node has none
    started = np.where(table.start_time_micros > 0, table.start_time_micros - obfuscation.first_start_micros + 1, 0)
    comm_size, split_sizes = _communication(table, obfuscation)
    return dataclasses.replace(
        table,
        version=SCHEMA_VERSION,
        node_id=obfuscation.ids(table.node_id),
        names=obfuscation.names(table.names),
        start_time_micros=started if obfuscation.level.has_start_times else np.zeros(len(table), np.int64),
        duration_micros=obfuscation.numbers("duration_micros", table.duration_micros),
        num_ops=obfuscation.numbers("num_ops", table.num_ops),
        tensor_size=obfuscation.numbers("tensor_size", table.tensor_size),
        comm_size=comm_size,
        comm_tag=obfuscation.tags(table.comm_tag),
        group_names=tuple(obfuscation.groups[name] for name in table.group_names),
        metadata_groups={obfuscation.groups[name]: npus for name, npus in table.metadata_groups.items()},
        split_sizes=split_sizes,
        operators=np.zeros(len(table), np.int32),
        operator_lists=("",),
        other=None,
        other_attributes=((),),
    )


def _communication(table: TraceTable, obfuscation: Obfuscation) -> tuple[Int64, tuple[Splits, ...]]:
    """Return the new sizes of messages and collectives, int64[n], and the new lists of split sizes.

    What one member sends another one receives. So each share is replaced by a function of its value alone, and likewise
    the bytes per unit of a share; the size is then the sum of the new shares in those bytes.
    """
    comm_size = obfuscation.numbers("comm_size", table.comm_size)
    rows = np.flatnonzero(table.in_split_size)
    if obfuscation.level.keeps_numbers or not len(rows):
        return comm_size, table.split_sizes
    lists = tuple(_shares(obfuscation, numbers) for numbers in table.split_sizes)
    comm_size = comm_size.copy()
    for row in rows.tolist():
        before, after = (sizes[table.in_split_size[row]] for sizes in (table.split_sizes, lists))
        size = int(table.comm_size[row])
        # Bytes per unit of a share: shares may count elements instead of bytes
        unit = max(size // max(sum(before), 1), 1) if size > 0 else 0
        of_one = hidden(obfuscation.level, obfuscation.secret, _BYTES_PER_SHARE, "bytes", np.array([unit], np.int64))
        comm_size[row] = int(of_one[0]) * sum(after)
    return comm_size, lists


def _shares(obfuscation: Obfuscation, numbers: Splits) -> Splits:
    """Return the replacements of the split sizes of one member."""
    if obfuscation.level.is_flat:
        return tuple(int(number > 0) for number in numbers)
    # The bytes per share have the secret factor already: scaling shares, too, would square it in comm_size
    level = dataclasses.replace(obfuscation.level, is_scaled=False)
    return tuple(hidden(level, obfuscation.secret, "share", "bytes", np.array(numbers, np.int64)).tolist())

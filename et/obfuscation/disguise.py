"""A trace in disguise: other names, ids, groups and tags, no shapes, other numbers; the same structure."""

import dataclasses
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from et.attributes import ALL_NPUS
from et.builders import SCHEMA_VERSION
from et.names import NameTable
from et.obfuscation.levels import Level, hidden
from et.obfuscation.secret import SecretKey
from et.obfuscation.vocabulary import Vocabulary
from et.table import TraceTable

Int64 = NDArray[np.int64]
Splits = tuple[int, ...]

_UNITS = {"comm_size": "bytes", "tensor_size": "bytes", "num_ops": "flops", "duration_micros": "micros"}
_BYTES_PER_SHARE = "bytes per share"


class Obfuscation:
    """How all traces of a set are hidden: the same value looks the same in each of them.

    Attributes:
        secret: the key.
        level: of fidelity.
        groups: the name that stands for each group, a number from 1 on, as other simulators read them.
        first_start_micros: what start times are counted from.
    """

    def __init__(self, secret: SecretKey, level: Level, used: Vocabulary) -> None:
        self.secret = secret
        self.level = level
        self.groups = {name: str(number) for name, number in secret.numbered("group", used.groups, 1).items()}
        self.groups[ALL_NPUS] = ALL_NPUS
        self.first_start_micros = used.first_start_micros
        self._ids = used.ids
        number = secret.numbered("id", used.ids.tolist())
        self._new_ids = np.array([number[value] for value in used.ids.tolist()], np.uint64)
        self._tags = secret.numbered("tag", used.tags)
        self._names: dict[str, bytes] = {}

    def ids(self, node_id: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """uint64[n]: the ids that stand for these, which are 0 .. ids of the set - 1 in a secret order."""
        return self._new_ids[np.searchsorted(self._ids, node_id)]

    def tags(self, comm_tag: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32[n]: the tags that stand for these; -1, absent, stays."""
        distinct, row = np.unique(comm_tag, return_inverse=True)
        return np.array([self._tags.get(tag, -1) for tag in distinct.tolist()], np.int32)[row]

    def names(self, names: Iterable[str]) -> NameTable:
        """The pseudonyms of nodes; equal names have equal ones."""
        found = []
        for name in names:
            if name not in self._names:
                self._names[name] = b"n" + self.secret.pseudonym("name", name).encode()
            found.append(self._names[name])
        return NameTable.of(found)

    def numbers(self, column: str, values: Int64) -> Int64:
        """int64[n]: what stands for sizes or times of a column of TraceTable."""
        return hidden(self.level, self.secret, column, _UNITS[column], values)


def obfuscate(table: TraceTable, disguise: Obfuscation) -> TraceTable:
    """A trace in disguise; rows stay in their order, and so do kinds, parents, peers, priorities and dimensions.

    Args:
        table: a trace whose ids, groups and tags the disguise knows.
        disguise: of the set that the trace is of.
    """
    started = np.where(table.start_time_micros > 0, table.start_time_micros - disguise.first_start_micros + 1, 0)
    comm_size, split_sizes = _communication(table, disguise)
    return dataclasses.replace(
        table,
        version=SCHEMA_VERSION,
        node_id=disguise.ids(table.node_id),
        names=disguise.names(table.names),
        start_time_micros=started if disguise.level.has_start_times else np.zeros(len(table), np.int64),
        duration_micros=disguise.numbers("duration_micros", table.duration_micros),
        num_ops=disguise.numbers("num_ops", table.num_ops),
        tensor_size=disguise.numbers("tensor_size", table.tensor_size),
        comm_size=comm_size,
        comm_tag=disguise.tags(table.comm_tag),
        group_names=tuple(disguise.groups[name] for name in table.group_names),
        metadata_groups={disguise.groups[name]: npus for name, npus in table.metadata_groups.items()},
        split_sizes=split_sizes,
        operators=np.zeros(len(table), np.int32),
        operator_lists=("",),
        other=None,
        other_attributes=((),),
    )


def _communication(table: TraceTable, disguise: Obfuscation) -> tuple[Int64, tuple[Splits, ...]]:
    """int64[n] sizes, and the lists of split sizes.

    What one member says that it sends another says that it receives: so each share has its own disguise, and so has
    what a share of 1 means in bytes; the size is what all shares together mean then.
    """
    comm_size = disguise.numbers("comm_size", table.comm_size)
    rows = np.flatnonzero(table.in_split_size)
    if disguise.level.keeps_numbers or not len(rows):
        return comm_size, table.split_sizes
    lists = tuple(_shares(disguise, numbers) for numbers in table.split_sizes)
    comm_size = comm_size.copy()
    for row in rows.tolist():
        before, after = (every[table.in_split_size[row]] for every in (table.split_sizes, lists))
        size = int(table.comm_size[row])
        unit = max(size // max(sum(before), 1), 1) if size > 0 else 0
        of_one = hidden(disguise.level, disguise.secret, _BYTES_PER_SHARE, "bytes", np.array([unit], np.int64))
        comm_size[row] = int(of_one[0]) * sum(after)
    return comm_size, lists


def _shares(disguise: Obfuscation, numbers: Splits) -> Splits:
    if disguise.level.is_flat:
        return tuple(int(number > 0) for number in numbers)
    level = dataclasses.replace(disguise.level, is_scaled=False)
    return tuple(hidden(level, disguise.secret, "share", "bytes", np.array(numbers, np.int64)).tolist())

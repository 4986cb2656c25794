"""Collectives with the same group name, kind, number of members and size, which tables show in one row."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from et.arrays import Int64

if TYPE_CHECKING:
    import pyarrow as pa


class CollectiveKey(NamedTuple):
    """The key by which collectives are alike, also those of different runs."""

    group: str  # name of the group in the traces, which groups of one family share; "" for all NPUs
    kind: str  # kind of the collective, such as "all-reduce"
    members: int  # number of NPUs in the group
    size_bytes: int  # size of the whole buffer in bytes


def alike(collectives: "pa.Table") -> dict[CollectiveKey, Int64]:
    """Return the rows of collectives.parquet by key, in the order of each key's first row."""
    columns = (collectives[name].to_pylist() for name in ("group_name", "kind", "members", "bytes"))
    number: dict[CollectiveKey, int] = {}
    of_row = [number.setdefault(CollectiveKey(*key), len(number)) for key in zip(*columns, strict=True)]
    rows = np.split(np.argsort(of_row, kind="stable"), np.cumsum(np.bincount(of_row, minlength=1))[:-1])
    return dict(zip(number, rows, strict=False))


def slowest(collectives: "pa.Table") -> list[tuple[CollectiveKey, Int64]]:
    """Return the keys and rows of `alike`, those with the largest summed time first."""
    time_ps = np.asarray(collectives["time_ps"])
    return sorted(alike(collectives).items(), key=lambda each: -int(time_ps[each[1]].sum()))

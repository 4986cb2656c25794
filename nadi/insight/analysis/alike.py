"""The table of collectives, and the rows of collectives that are alike, which reports show together."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nadi.inputs.arrays import Int64
from nadi.inputs.arrow import arrow_texts, arrow_words, numpy_column
from nadi.insight.analysis.findings import Findings, distinct_rows
from nadi.simulation.schemas import COLLECTIVES
from nadi.workload import KINDS


class CollectiveKey(NamedTuple):
    """The key by which collectives are alike, also those of different runs."""

    group: str  # name of the group in the traces, which groups of one family share; "" for all NPUs
    kind: str  # kind of the collective, such as "all-reduce"
    members: int  # number of NPUs in the group
    size_bytes: int  # size of the whole buffer in bytes


def collectives_table(findings: Findings) -> pa.Table:
    """Return collectives.parquet of a run.

    Args:
        findings: Result of the analysis of the run (`Findings`).
    """
    found = findings.collectives
    columns = {
        "group_name": arrow_texts(findings.group_names),
        "kind": arrow_words(KINDS, found.kind),
        "algorithm": arrow_texts(findings.algorithms),
        "bytes": found.size_bytes,
        "algbw_Bps": findings.algorithm_Bps,
        "busbw_Bps": findings.bus_Bps,
    }
    own = ("group", "seq", "members", "start_ps", "ready_ps", "finish_ps", "time_ps")
    columns |= {name: getattr(found, name) for name in own}
    columns |= {name: getattr(findings, name) for name in ("closed_form_ps", "closed_form_played", "ratio")}
    return COLLECTIVES.table(columns)


def alike(collectives: pa.Table) -> dict[CollectiveKey, Int64]:
    """Return the rows of collectives.parquet by key, in the order of each key's first row."""
    names = ("group_name", "kind", "members", "bytes")
    words = [np.unique(numpy_column(collectives[name]), return_inverse=True)[1] for name in names[:2]]
    first, number = distinct_rows([*words, *(numpy_column(collectives[name]) for name in names[2:])])
    chosen = collectives.select(names)  # `take` would import PyArrow's functions
    keys = (chosen.slice(row, 1).to_pylist()[0].values() for row in first.tolist())
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number, minlength=1))[:-1])
    return dict(zip((CollectiveKey(*key) for key in keys), rows, strict=False))


def slowest(collectives: pa.Table) -> list[tuple[CollectiveKey, Int64]]:
    """Return the keys and rows of `alike`, those with the largest summed time first.

    Args:
        collectives: Columns of collectives.parquet.
    """
    time_ps = numpy_column(collectives["time_ps"])
    return sorted(alike(collectives).items(), key=lambda each: -int(time_ps[each[1]].sum()))

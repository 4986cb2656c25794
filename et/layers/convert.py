"""From a file of layers to the traces of all NPUs, with what was assumed and what was lost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import inputs
from et.errors import TraceError
from et.layers.file import POLICIES, LayerFile, read_layers
from et.layers.loops import Dialect, table_of_layers
from et.layers.ranks import AlikeTraces, RankNumbering, npus_of, whole_number
from et.trace_tables import TraceTables

LAYER_OPTIONS = {"npus": "how many NPUs there are, where the file does not say it", "passes": "how many steps, 1"}
_HEAD_CHARACTERS = 4096
_MAX_LAYERS = 1 << 17
"""Layers of all passes in one trace: three to eight nodes each, of which Python makes 40,000 a second."""


def first_words(path: Path) -> list[str]:
    """Words of the first line, if it is a file of layers; else none."""
    kind = inputs.kind_of(path)
    if kind is None or not kind.is_file or kind.key not in {"layers", "gzip:layers"}:
        return []
    try:
        head = next(inputs.blocks(path), b"")[:_HEAD_CHARACTERS].decode("utf-8", errors="replace")
    except OSError:
        return []
    words = head.split("\n", 1)[0].split()
    return words if words and words[0] in POLICIES else []


def traces_of_layers(paths: Sequence[Path], options: Mapping[str, str], dialect: Dialect) -> TraceTables:
    """The traces of one file.

    Raises:
        TraceError: several files, a wrong one, or NPUs that do not fit the groups.
    """
    if len(paths) != 1:
        raise TraceError(f"{paths[1]}: a second file, expected one workload of layers")
    file = read_layers(paths[0])
    npus = npus_of(file, options.get("npus"))
    passes = whole_number("passes", options.get("passes", "1"))
    if passes * len(file.layers) > _MAX_LAYERS:
        raise TraceError(
            f"{file.path}: {passes:,} passes over {len(file.layers):,} layers, expected at most {_MAX_LAYERS:,} "
            "layers in all"
        )
    ranks = RankNumbering(file, npus)
    table = table_of_layers(file, dialect, passes, ranks.members)
    kinds = [name for name in table.group_names if name]
    groups, names = ranks.groups(kinds)
    report = {
        "policy": file.policy,
        "layers": len(file.layers),
        "passes": passes,
        "nodes": len(table),
        "tensor": ranks.tensor,
        "data": ranks.data,
        "expert": ranks.expert,
        "pipeline": ranks.pipeline,
    }
    return TraceTables(AlikeTraces(table, names, npus), groups, tuple(_notes(file, dialect, ranks)), report, len(table))


def _notes(file: LayerFile, dialect: Dialect, ranks: RankNumbering) -> list[str]:
    what = "of the gathered buffer" if dialect.gather_total else "one member's contribution"
    notes = [
        "Times are nanoseconds in the file; in traces what is below a microsecond is added to the next computation.",
        f"Sizes of all-gathers are {what} in the file, one member's contribution in the traces.",
        "The order in which the original prefers collectives that wait (LIFO, FIFO) is not in the traces.",
    ]
    notes += [f"{count} {name} left out, as the original does." for name, count in file.left_out.items()]
    if file.policy in {"HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED"}:
        notes.append("Collectives are of some dimensions of the fabric (involved_dim), which needs two or more.")
    if file.policy.startswith("HYBRID_DLRM"):
        notes.append(
            "All-to-alls are of all NPUs; ASTRA-sim 1.0 does them in no dimension, so that they take no time there."
        )
    if ranks.pipeline > 1:
        notes.append(
            f"All {ranks.pipeline} stages of the pipeline do the layers of the file beside each other and send each "
            "other nothing, as in SimAI's packet simulation."
        )
    return notes

"""Conversion of a file of layers to the traces of all NPUs, with notes on assumptions and losses."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import inputs
from et.errors import TraceError
from et.layers.file import POLICIES, LayerFile, read_layers
from et.layers.loops import Dialect, table_of_layers
from et.layers.ranks import RankNumbering, npus_of, whole_number
from et.table import LazyTraces, TraceTable, TraceTables

LAYER_OPTIONS = {"npus": "number of NPUs, if the file does not have it", "passes": "number of steps, 1 by default"}
_HEAD_CHARACTERS = 4096
_MAX_LAYERS = 1 << 17  # layers in all passes: Python makes 40,000 nodes per second, three to eight per layer


def first_words(path: Path) -> list[str]:
    """Return the words of the first line of a file of layers; an empty list for other files."""
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
    """Return the traces of one file."""
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
    groups, names = ranks.groups([name for name in table.group_names if name])

    def of_npu(npu: int) -> TraceTable:
        own_names = tuple(names[name][npu] if name in names else name for name in table.group_names)
        return dataclasses.replace(table, group_names=own_names)

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
    return TraceTables(LazyTraces(range(npus), of_npu), groups, tuple(_notes(file, dialect, ranks)), report, len(table))


def _notes(file: LayerFile, dialect: Dialect, ranks: RankNumbering) -> list[str]:
    meaning = "those of the gathered buffer" if dialect.gather_total else "one member's contribution"
    notes = [
        "Times are nanoseconds in the file; fractions of a microsecond are added to the next computation of the trace.",
        f"Sizes of all-gathers are {meaning} in the file, one member's contribution in the traces.",
        "The traces do not have the original's policy for waiting collectives (LIFO, FIFO).",
    ]
    notes += [f"{count} {name} omitted, as in the original." for name, count in file.left_out.items()]
    if file.policy in {"HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED"}:
        notes.append("Collectives are over some dimensions of the fabric (involved_dim), which must have two or more.")
    if file.policy.startswith("HYBRID_DLRM"):
        notes.append(
            "All-to-alls are over all NPUs; ASTRA-sim 1.0 runs them in no dimension, so that they take no time there."
        )
    if ranks.pipeline > 1:
        notes.append(
            f"All {ranks.pipeline} stages of the pipeline run the layers of the file side by side and send each "
            "other nothing, as in SimAI's packet simulation."
        )
    return notes

"""Conversion of a file of layers to the traces of all NPUs, which do the same work, each in its own groups."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.et.layers.file import POLICIES, LayerFile, read_layers
from nadi.et.layers.loops import Dialect, table_of_layers
from nadi.et.layers.pipeline import PipelineStage
from nadi.et.table import LazyTraces, TraceTable, TraceTables
from nadi.inputs.limits import MAX_NPUS

Groups = dict[str, tuple[int, ...]]

LAYER_OPTIONS = {"npus": "number of NPUs, if the file does not have it", "passes": "number of steps, 1 by default"}
_HEAD_CHARACTERS = 4096
_MAX_LAYERS = 1 << 17  # layers in all passes: Python makes 40,000 nodes per second, three to eight per layer


class RankNumbering:
    """Numbering of NPUs: tensor parallelism varies fastest, then data parallelism, then the pipeline, as in Megatron.

    Expert parallelism is within data parallelism: its groups are neighbours there, DP_EP has NPUs of equal place.
    Numbers that do not fit together raise TraceError.
    """

    def __init__(self, file: LayerFile, npus: int) -> None:
        self.npus = npus
        self.tensor = file.numbers.get("model_parallel_NPU_group", 1)
        self.pipeline = max(file.numbers.get("pp", 1), 1)
        expert = max(file.numbers.get("ep", 1), 1)
        per_replica = self.tensor * self.pipeline
        if not per_replica or npus % per_replica or (npus // per_replica) % expert:
            raise TraceError(
                f"{file.path}: {npus} NPUs with tensor {self.tensor}, pipeline {self.pipeline} and expert parallelism "
                f"{expert}, expected that tensor x pipeline divides the NPUs, and expert the rest"
            )
        # What tensor and pipeline parallelism leave is data parallelism, of which expert parallelism takes a part
        self.data = npus // per_replica
        self.expert = expert

    @property
    def members(self) -> dict[str, int]:
        """Number of members of each group."""
        return {"": self.npus, "TP": self.tensor, "DP": self.data, "EP": self.expert, "DP_EP": self.data // self.expert}

    @property
    def stages(self) -> list[PipelineStage]:
        """Stages of the pipeline, with the first NPU of each."""
        stride = self.data * self.tensor
        return [PipelineStage(number, self.pipeline, number * stride, stride) for number in range(self.pipeline)]

    def family(self, kind: str) -> list[tuple[int, ...]]:
        """Return the members of all groups of a kind, each group once, in the order of the first members.

        Args:
            kind: One of "TP", "DP", "EP" and "DP_EP".
        """
        tensors, experts = range(self.tensor), range(self.expert)
        # Replicas are places in the data dimension. For data 4 and expert 2: EP has 0 1 and 2 3, DP_EP has 0 2 and 1 3.
        # With tensor 2 the NPUs of EP are 0 2, 1 3, 4 6, 5 7.
        replicas = {
            "DP": [range(self.data)],
            "EP": [range(first, first + self.expert) for first in range(0, self.data, self.expert)],
            "DP_EP": [range(expert, self.data, self.expert) for expert in experts],
        }
        groups = []
        for stage in self.stages:
            if kind == "TP":
                ends = range(stage.first_npu, stage.first_npu + stage.stride, self.tensor)
                groups += [tuple(range(first, first + self.tensor)) for first in ends]
            else:
                groups += [
                    tuple(stage.first_npu + replica * self.tensor + tensor for replica in of_group)
                    for of_group in replicas[kind]
                    for tensor in tensors
                ]
        return groups

    def groups(self, kinds: list[str]) -> tuple[Groups, dict[str, list[str]]]:
        """Return all groups by number from 1 on, and for each kind the name of each NPU's group.

        Args:
            kinds: The kinds of groups, as in `family`.
        """
        found: Groups = {}
        names: dict[str, list[str]] = {}
        for kind in kinds:
            names[kind] = [""] * self.npus
            for members in self.family(kind):
                found[str(len(found) + 1)] = members
                for member in members:
                    names[kind][member] = str(len(found))
        return found, names


def stage_tables(
    file: LayerFile, dialect: Dialect, passes: int, ranks: RankNumbering
) -> tuple[list[TraceTable], list[int]]:
    """Return the distinct traces, each of the first NPU of a stage that has it, and the trace of each stage.

    Without messages all stages share a trace; with them, those between the first and the last do.

    Args:
        file: The layers and the numbers of the first line.
        dialect: The rules of the program that the file is written for.
        passes: The number of training steps.
        ranks: The numbering of the NPUs, which has the stages of the pipeline.
    """
    stages = ranks.stages
    # The first and the last stage lack a neighbour; all stages between them are alike
    distinct = sorted({0, min(1, len(stages) - 1), len(stages) - 1}) if file.numbers.get("pp_comm") else [0]
    tables = [table_of_layers(file, dialect, passes, ranks.members, stages[number]) for number in distinct]
    # Of four stages 0, 1 and 3 are distinct; stage 2 uses the trace of stage 1
    return tables, [max(i for i, first in enumerate(distinct) if first <= stage.number) for stage in stages]


def npus_of(file: LayerFile, npus_option: str | None) -> int:
    """Return the number of NPUs that the user or the file gives; raise TraceError if neither does, or they differ.

    Args:
        file: The file, whose first line may have `all_gpus`.
        npus_option: The user's option `npus`; None = not given.
    """
    in_file = file.numbers.get("all_gpus")
    if npus_option is None:
        if in_file is None:
            raise TraceError(f"{file.path}: the number of NPUs is unknown, expected --from NAME:npus=N")
        npus = in_file
    else:
        npus = whole_number("npus", npus_option)
    if in_file is not None and npus != in_file:
        raise TraceError(f"{file.path}: all_gpus is {in_file}, but npus={npus} was given, expected the same")
    if not 1 <= npus <= MAX_NPUS:
        raise TraceError(f"{file.path}: {npus} NPUs, expected 1 to {MAX_NPUS}")
    return npus


def whole_number(name: str, text: str) -> int:
    """Return the value of an option; raise TraceError if the value is no integer from 1.

    Args:
        name: The name of the option, for the error.
        text: The value that the user has typed.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise TraceError(f"--from: {name} is {text[:40]!r}, expected an integer from 1")
    return int(text)


def first_words(path: Path) -> list[str]:
    """Return the words of the first line of a file of layers; an empty list for other files.

    Args:
        path: Any file; only its first 4,096 characters are read.
    """
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
    """Return the traces of all NPUs from a file of layers.

    Args:
        paths: A list of one file.
        options: The user's options `npus`, the number of NPUs, and `passes`, the number of training steps, as text.
        dialect: The rules of the program that the file is written for.
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
    tables, table_of_stage = stage_tables(file, dialect, passes, ranks)
    groups, names = ranks.groups([name for name in tables[0].group_names if name])

    def of_npu(npu: int) -> TraceTable:
        number = table_of_stage[npu // ranks.stages[0].stride]
        table = tables[number]
        own_names = tuple(names[name][npu] if name in names else name for name in table.group_names)
        # Partners are at equal distances for all NPUs with this trace: shift them
        own = np.int32(npu - ranks.stages[table_of_stage.index(number)].first_npu)
        src, dst = (np.where(column >= 0, column + own, column) for column in (table.comm_src, table.comm_dst))
        return dataclasses.replace(table, group_names=own_names, comm_src=src, comm_dst=dst)

    report = {"policy": file.policy, "layers": len(file.layers), "passes": passes, "nodes": len(tables[0])}
    report |= {name: getattr(ranks, name) for name in ("tensor", "data", "expert", "pipeline")}
    return TraceTables(
        LazyTraces(range(npus), of_npu), groups, tuple(_notes(file, dialect, ranks)), report, len(tables[0])
    )


def _notes(file: LayerFile, dialect: Dialect, ranks: RankNumbering) -> list[str]:
    """Return remarks for the user about what the conversion of a file to traces changes or leaves out."""
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
        told = "send each other their micro-batches (pp_comm), which SimAI's packet simulation leaves out"
        sent = told if file.numbers.get("pp_comm") else "send each other nothing, for want of pp_comm"
        notes.append(f"All {ranks.pipeline} stages of the pipeline run the layers of the file side by side and {sent}.")
    return notes

"""Workloads of layers, the text format of ASTRA-sim 1.0 and SimAI, as the traces of all NPUs.

`file` reads the lines; here are the loops over the layers, in the groups of each NPU.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nadi import inputs
from nadi.et.blocks import Block, TraceColumns
from nadi.et.errors import TraceError
from nadi.et.layers.file import POLICIES, Layer, LayerFile, LayerPass, PipelineStage, Slot, read_layers, slots_of
from nadi.et.reader import collective_name
from nadi.et.schema import CollectiveCommType
from nadi.et.table import LazyTraces, TraceTable, TraceTables
from nadi.inputs.limits import MAX_NPUS

# The loops of ASTRA-sim 1.0 and SimAI over the layers, policy by policy, as the nodes of one NPU.
#
# Computation is one chain. *Blocking* collectives are part of it; the next layer waits. Others run beside it: the
# collective of a layer's weight gradients must end before the layer's forward pass of the next step, that of its input
# gradients before what follows the computation of its weight gradients. A stage of a pipeline receives each micro-batch
# before, and sends it after, its layers (et.layers.file), which neither original does with packets.
#
# Source: workload/Workload.cc (iterate_*), workload/Layer.cc.

_ALL_DIMS = -1
_FIRST_DIM, _OTHER_DIMS = 0b1, 0b1111111110
_MAX_NODES = 20_000_000
_TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
_DLRM = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
_NO_WEIGHT_COMM = ("MODEL", "DISTRIBUTED_INFERENCE")
_ALONE = PipelineStage(0, 1, 0, 0)


@dataclasses.dataclass(frozen=True)
class Dialect:
    """Differences between the two programs."""

    min_forward_bytes: int  # minimum size of a collective of the forward pass; smaller ones are rounded up to it
    gather_total: bool  # whether the size of an all-gather is the gathered buffer's, not one member's contribution
    # function of a collective's group, kind, bytes as written and number of members; it returns the time in
    # nanoseconds; with it the traces have computations in place of collectives
    collective_nanos: Callable[[str, CollectiveCommType, int, int], float] | None = None


def table_of_layers(
    file: LayerFile, dialect: Dialect, passes: int, members: dict[str, int], stage: PipelineStage = _ALONE
) -> TraceTable:
    """Return the trace of the first NPU of a pipeline stage; the other NPUs of the stage do the same work.

    Args:
        file: The layers and the numbers of the first line.
        dialect: The rules of the program that the file is written for.
        passes: The number of training steps.
        members: The number of NPUs in a group of each kind: "TP", "DP", "EP", "DP_EP", and "" for all NPUs.
        stage: The place of the NPU in the pipeline; NPU 0 of a pipeline of one stage by default.
    """
    if passes * len(file.layers) * 8 > _MAX_NODES:
        raise TraceError(f"{file.path}: {len(file.layers)} layers in {passes} passes, expected fewer")
    return _Steps(file, dialect, members, stage).table(passes)


class _Steps:
    """The nodes of a trace while they are made.

    `name` is a pass: "forward", "backward", "backward-weights", ...; `i` is a layer's index, `phase` that pass of it.
    `members` has the number of NPUs by group. Collectives return their row.
    """

    def __init__(self, file: LayerFile, dialect: Dialect, members: dict[str, int], stage: PipelineStage) -> None:
        self._file, self._dialect, self._members, self._stage = file, dialect, members, stage
        self._slots = slots_of(file, stage.stages)
        self._message_bytes = file.numbers.get("pp_comm", 0)  # 0 = stages send no messages
        self._chunks = 1 + max(slot.chunk for slot in self._slots)  # number of chunks of a stage
        self._block = Block()
        self._dims: dict[int, int] = {}  # dimensions of each collective that does not use all, as bits
        self._last: list[int] = []  # rows that the next node of the chain waits for
        self._nanos = 0  # computation time that is left over from whole microseconds
        self._weights: dict[int, int] = {}  # row that ends the update of each layer, until the forward pass awaits it
        self._inputs: dict[int, int] = {}  # collective of each layer's input gradients that is not awaited yet
        self._forward: dict[int, int] = {}  # collective of each layer's forward pass that is not awaited yet
        self._step = ""  # beginning of the names of the step's nodes

    def table(self, passes: int) -> TraceTable:
        """Return the trace of `passes` training steps.

        Args:
            passes: The number of training steps.
        """
        policy = self._file.policy
        for number in range(passes):
            self._step = f"step{number}"
            if policy == "MICRO":
                self._weight_collective(0)
            elif policy == "DATA":
                layers = self._file.layers
                for i, layer in enumerate(layers):
                    self._await(self._weights.pop(i, None))
                    self._compute("forward", i, layer.forward)
                for i in reversed(range(len(layers))):
                    self._compute("backward-weights", i, layers[i].weight_gradient)
                    self._weight_collective(i)
                    if i:  # layer 0 has no input gradients
                        self._compute("backward", i, layers[i].input_gradient)
            elif policy in _DLRM:
                self._dlrm()
            else:
                self._hybrid()
        columns = TraceColumns(self._stage.first_npu, str(self._file.path))
        columns.stamp(self._block)
        table = columns.table()
        # Block has no argument for dimensions, so the column is replaced at the end
        dims = np.full(len(table), _ALL_DIMS, np.int32)
        for row, bits in self._dims.items():
            dims[row] = bits
        return dataclasses.replace(table, involved_dim=dims)

    def _dlrm(self) -> None:
        """Add a step as in DATA, with all-to-alls of embeddings: the last bottom layer waits for that of layer 0."""
        layers, bottom = self._file.layers, self._file.numbers.get("DLRM_LAST_BOTTOM_LAYER", 0)
        for i, layer in enumerate(layers):
            self._await(self._weights.pop(i, None))
            self._compute("forward", i, layer.forward)
            if layer.forward.kind == CollectiveCommType.ALL_TO_ALL:
                self._forward[i] = self._collective("forward", i, layer.forward, blocking=False)
            elif i == bottom:
                self._await(self._forward.get(0))
        for i in reversed(range(len(layers))):
            self._compute("backward-weights", i, layers[i].weight_gradient)
            self._weight_collective(i)
            if self._file.policy == "HYBRID_DLRM":
                self._await(self._inputs.pop(i, None))
            if i:
                self._compute("backward", i, layers[i].input_gradient)
                if i == bottom + 1 and layers[0].input_gradient.kind is not None:
                    self._inputs[0] = self._collective("backward", 0, layers[0].input_gradient, blocking=False)

    def _forward_layer(self, name: str, i: int) -> None:
        """Add a forward pass with a blocking collective."""
        phase = self._file.layers[i].forward
        self._await(self._weights.pop(i, None))
        self._compute(name, i, phase)
        if phase.kind is not None:
            self._collective(name, i, phase, blocking=True)

    def _hybrid(self) -> None:
        """Add a step with input gradients before weight gradients; transformers block on the former's collectives."""
        policy = self._file.policy
        for slot in self._slots:
            self._receive(slot, backward=False)
            for i in slot.layers:
                self._forward_layer("forward", i)
            self._send(slot, backward=False)
        # Inference has no backward pass
        for slot in reversed(self._slots) if policy != "DISTRIBUTED_INFERENCE" else ():
            self._receive(slot, backward=True)
            for i in reversed(slot.layers):
                self._backward_layer(i)
            self._send(slot, backward=True)

    def _backward_layer(self, i: int) -> None:
        """Add the input gradients and then the weight gradients of a layer."""
        layers, policy = self._file.layers, self._file.policy
        blocking = policy in _TRANSFORMERS
        if policy == "HYBRID_TRANSFORMER_FWD_IN_BCKWD" and i in self._file.lists.get("checkpoint_initiates", ()):
            # Recomputation runs from the last checkpoint up to the layer before this one
            before = [c for c in self._file.lists.get("checkpoints", ()) if c <= i]
            if not before:
                raise TraceError(f"{self._file.path}: line 1: layer {i} initiates, expected a checkpoint up to it")
            for layer in range(max(before), i):
                self._forward_layer("forward-again", layer)
        phase = layers[i].input_gradient
        self._compute("backward", i, phase)
        # The collective of the input gradients, which layer 0 has only in transformers
        mine = None
        if phase.kind is not None and (blocking or i > 0):
            mine = self._collective("backward", i, phase, blocking=blocking)
        self._compute("backward-weights", i, layers[i].weight_gradient)
        if policy not in _NO_WEIGHT_COMM:
            self._weight_collective(i)
        self._await(None if blocking else mine)

    def _receive(self, slot: Slot, *, backward: bool) -> None:
        """Let a slot wait for its micro-batch from the neighbouring stage, if it has one."""
        # The stage before, seen in the direction of the pass
        source = self._stage.next_of(slot.chunk, self._chunks, backward=not backward)
        if slot.micro_batch >= 0 and source and self._message_bytes:
            name, tag = self._message("recv", slot, slot.chunk, backward=backward)
            self._await(self._block.recv(name, self._message_bytes, peer=source[0], tag=tag))

    def _send(self, slot: Slot, *, backward: bool) -> None:
        """Send the micro-batch of a slot to the neighbouring stage, if it has one; nothing waits for it."""
        target = self._stage.next_of(slot.chunk, self._chunks, backward=backward)
        if slot.micro_batch >= 0 and target and self._message_bytes:
            name, tag = self._message("send", slot, target[1], backward=backward)
            self._block.send(name, self._message_bytes, peer=target[0], tag=tag, after=self._last)

    def _message(self, what: str, slot: Slot, chunk: int, *, backward: bool) -> tuple[str, int]:
        """Return name and tag of the message of a slot's micro-batch to a chunk of the receiver."""
        phase = "backward" if backward else "forward"
        name = f"{self._step}/{phase}/microbatch{slot.micro_batch}-chunk{chunk}/{what}"
        # One tag per micro-batch, chunk and direction
        return name, 2 * (slot.micro_batch * self._chunks + chunk) + backward

    def _compute(self, name: str, i: int, phase: LayerPass) -> None:
        """Add a computation; the fraction of a microsecond is carried over to the next one."""
        # Five layers of 0.4 microseconds take 2 together; cut one by one, they would take nothing
        micros, self._nanos = divmod(self._nanos + phase.nanos, 1000)
        if micros:
            self._last = [self._block.comp(self._name(name, i, "compute"), duration_micros=micros, after=self._last)]

    def _await(self, row: int | None) -> None:
        if row is not None and row not in self._last:
            self._last = [*self._last, row]

    def _weight_collective(self, i: int) -> None:
        """Add a collective beside the chain, then the update, on the host so that it does not delay computations."""
        layer = self._file.layers[i]
        if layer.weight_gradient.kind is None:
            return
        row = self._collective("backward-weights", i, layer.weight_gradient, blocking=False)
        micros = round(layer.update_nanos / 1000)
        if micros and self._file.policy != "MICRO":
            name = self._name("update", i, "compute")
            row = self._block.comp(name, duration_micros=micros, is_cpu_op=True, after=[row])
        self._weights[i] = row

    def _collective(self, name: str, i: int, phase: LayerPass, *, blocking: bool) -> int:
        """Add a collective, or a computation of no time if it has no bytes; if `blocking`, later nodes wait for it."""
        kind = phase.kind
        if kind is None:
            raise TypeError(f"layer {i} has no collective in its {name} pass")
        group, dims = self._group_and_dims(name, self._file.layers[i], phase)
        size = phase.size
        if name == "forward" and 0 < size < self._dialect.min_forward_bytes:
            size = self._dialect.min_forward_bytes
        members = self._members.get(group, 1)
        label = self._name(name, i, f"{group.lower().replace('_', '-') or 'world'}:{collective_name(kind)}")
        if size == 0:  # the originals allow this, and nothing is sent
            return self._block.comp(label, is_cpu_op=True, after=self._last)
        if self._dialect.collective_nanos is not None:
            micros = round(self._dialect.collective_nanos(group, kind, size, members) / 1000)
            # Those beside the chain are on the host, so that they delay no computation.
            row = self._block.comp(label, duration_micros=micros, is_cpu_op=not blocking, after=self._last)
        else:
            if kind == CollectiveCommType.ALL_GATHER and self._dialect.gather_total:
                size = -(-size // members)
            row = self._block.coll(label, kind, size, group=group, after=self._last)
        if dims != _ALL_DIMS:
            self._dims[row] = dims
        if blocking:
            self._last = [row]
        return row

    def _group_and_dims(self, name: str, layer: Layer, phase: LayerPass) -> tuple[str, int]:
        """Return the group of a collective and a bit set of the fabric's dimensions that it uses."""
        policy = layer.policy or self._file.policy
        of_weights = name == "backward-weights"
        if phase.group:
            return phase.group, _ALL_DIMS
        if policy in _TRANSFORMERS:
            return ("DP" if of_weights else "TP"), _ALL_DIMS
        if policy == "HYBRID_DATA_MODEL":
            return "", _OTHER_DIMS if of_weights else _FIRST_DIM
        if policy == "HYBRID_MODEL_DATA":
            return "", _FIRST_DIM if of_weights else _OTHER_DIMS
        return "", _ALL_DIMS

    def _name(self, phase: str, i: int, what: str) -> str:
        return f"{self._step}/{phase}/layer{i}-{self._file.layers[i].name}/{what}"


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

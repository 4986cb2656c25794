"""The trace of one NPU: blocks stamped in the order of the pipeline's schedule, and the end of the step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from et import TraceColumns, TraceTable
from workload.errors import WorkloadError
from workload.models.model import Model
from workload.training import pipeline, step_end
from workload.training.blocks import COMPUTED, QUEUED, SENT, BlockBuilder, Finished, Ring
from workload.training.items import Items, only
from workload.training.linear import all_gather
from workload.training.parallel_plan import ParallelPlan
from workload.training.pipeline import Work
from workload.training.ranks import neighbours, place, stage_size
from workload.training.replicas import Replicas
from workload.training.shard import Shard
from workload.training.stages import Chunk, chunks, micro_batches
from workload.training.units import units

_POSTED = "posted"
"""Port of a receive: when it is posted."""
_PREFIX = {"forward": "forward", "backward": "backward", "weights": "backward-weights"}
_MOST_PIPELINE_TAGS = 1 << 23
"""Tags from here on are those of context parallelism."""


@dataclass
class _State:
    """Rows of the trace so far that blocks come after, by port."""

    rows: dict[str, list[int]] = field(default_factory=dict)

    def after(self, block: Finished) -> dict[str, list[int]]:
        """What a stamp of a block connects."""
        return {port: self.rows[port] for port in block.ports if port in self.rows}

    def advance(self, block: Finished, first: int) -> None:
        """A block has been stamped whose first row is `first`."""
        self.rows[_POSTED] = self.rows.get(COMPUTED, [])
        self.rows[COMPUTED] = [first + row for row in block.ends]
        for family, row in block.last.items():
            self.rows[family] = [first + row]
        for key, row in block.keys.items():
            self.rows[key] = [first + row]


class Stage:
    """What an NPU does.

    Args:
        model: what is trained.
        plan: settled, by rules that have passed.
        framework: megatron, deepspeed or fsdp.
        npu: whose trace it is.
    """

    def __init__(self, model: Model, plan: ParallelPlan, framework: str, npu: int) -> None:
        where = place(plan, npu)
        self._plan, self._framework, self._npu, self._stage = plan, framework, npu, where.stage
        self._schedule = plan.pipeline_schedule
        self._shard = Shard(model, plan, where.ep)
        self._own: Sequence[Chunk] = chunks(model, plan)[where.stage]
        self._ring = Ring(*neighbours(plan, npu))
        has_embedding = any(chunk.is_first for chunk in self._own)
        self._replicas = [
            Replicas(
                plan,
                framework,
                units(self._shard, chunk, has_embedding=has_embedding),
                number,
                where.stage,
                self._schedule == "dualpipe" and chunk.slot >= plan.pp // 2,
            )
            for number, chunk in enumerate(self._own)
        ]
        self._blocks: dict[tuple[str, int, bool, bool], Finished] = {}
        self._columns = TraceColumns(npu, f"stage {where.stage}")
        self._state = _State()

    def table(self) -> TraceTable:
        """The whole trace."""
        count = micro_batches(self._plan)
        works = pipeline.order(self._schedule, self._stage, self._plan.pp, count, len(self._own))
        firsts, lasts = self._ends(works)
        for step in range(self._plan.steps):
            self._stamp(self._gathering, f"step{step}/forward/")
            for number, work in enumerate(works):
                block = self._block(work, is_first=number in firsts, is_last=number in lasts)
                self._stamp(block, f"step{step}/{_PREFIX[work.kind]}/mb{work.micro_batch}/", work.micro_batch)
            self._stamp(self._ending, f"step{step}/optimizer/")
        return self._columns.table()

    @staticmethod
    def _ends(works: Sequence[Work]) -> tuple[set[int], set[int]]:
        """Which works are the first forward passes of their chunks, and the last that make gradients of weights."""
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        for number, work in enumerate(works):
            if work.kind == "forward":
                firsts.setdefault(work.chunk, number)
            elif not work.is_split:
                lasts[work.chunk] = number
        return set(firsts.values()), set(lasts.values())

    def _stamp(self, block: Finished, prefix: str, micro_batch: int = 0) -> None:
        if not len(block.block):
            return
        most = _MOST_PIPELINE_TAGS // self._tags_of_micro_batch
        tag = micro_batch % most * self._tags_of_micro_batch
        first = self._columns.stamp(block.block, prefix, after=self._state.after(block), tag=tag)
        self._state.advance(block, first)
        if self._waits_for_sends:
            self._state.rows[SENT] = [first + row for row in block.sent]

    @cached_property
    def _tags_of_micro_batch(self) -> int:
        """A tag for each boundary between slices, and direction."""
        return 2 * pipeline.slices(self._schedule, self._plan.pp, len(self._own))

    @cached_property
    def _waits_for_sends(self) -> bool:
        """Megatron-LM's plain schedules, and DeepSpeed's, wait until what they send is sent.

        Interleaved ones do not (overlap_p2p_comm), nor do those of PyTorch.
        """
        return self._framework != "fsdp" and self._schedule in {"1f1b", "gpipe"}

    @cached_property
    def _gathering(self) -> Finished:
        """Parameters come beside the first forward pass."""
        builder = BlockBuilder()
        for replicas in self._replicas:
            if replicas.gathers_beside:
                builder.add("", replicas.gathers(beside=True))
        return builder.finish()

    @cached_property
    def _ending(self) -> Finished:
        """What comes after the last backward pass."""
        builder = BlockBuilder()
        for replicas in self._replicas:
            builder.add("", replicas.after_all())
        builder.wait(QUEUED)
        is_at_an_end = any(chunk.is_first or chunk.is_last for chunk in self._own)
        has_loss = [r for r, chunk in zip(self._replicas, self._own, strict=True) if chunk.is_last]
        builder.add("", step_end.items(self._shard, self._replicas, has_loss, is_at_an_end=is_at_an_end))
        return builder.finish()

    def _block(self, work: Work, *, is_first: bool, is_last: bool) -> Finished:
        kind = "backward-data" if work.is_split else work.kind
        key = kind, work.chunk, is_first, is_last
        if key not in self._blocks:
            if kind == "forward":
                self._blocks[key] = self._forward(work.chunk, is_first=is_first)
            else:
                self._blocks[key] = self._backward(kind, work.chunk, is_last=is_last)
        return self._blocks[key]

    def _forward(self, chunk: int, *, is_first: bool) -> Finished:
        builder, replicas = BlockBuilder(self._ring), self._replicas[chunk]
        self._receive(builder, chunk, is_forward=True)
        for number, unit in enumerate(replicas.units):
            begun, awaited = replicas.before_forward(number, is_first=is_first)
            builder.add("", begun)
            builder.wait(awaited)
            builder.add(unit.layer, unit.forward)
        self._send(builder, chunk, is_forward=True)
        return builder.finish()

    def _backward(self, kind: str, chunk: int, *, is_last: bool) -> Finished:
        """kind: backward, or of a split one backward-data or weights."""
        builder, replicas = BlockBuilder(self._ring), self._replicas[chunk]
        if kind != "weights":
            self._receive(builder, chunk, is_forward=False)
        for number in reversed(range(len(replicas.units))):
            unit = replicas.units[number]
            if kind != "weights":  # whose products are of activations and gradients
                begun, awaited = replicas.before_backward(number)
                builder.add("", begun)
                builder.wait(awaited)
            builder.add(unit.layer, _of_kind(unit.backward, kind))
            if kind != "backward-data":
                builder.add("", replicas.after_backward(number, is_last=is_last))
        if kind != "backward-data":
            builder.add("", replicas.after_micro_batch())
        if kind != "weights":
            self._send(builder, chunk, is_forward=False)
        return builder.finish()

    def _receive(self, builder: BlockBuilder, chunk: int, *, is_forward: bool) -> None:
        """What the passes of a chunk begin with, if not at an end of the model."""
        source = self._beside(chunk, is_forward=not is_forward)
        if source is None:
            return
        name = "pp:receive"
        tag = self._tag(self._own[chunk].slot - 1 if is_forward else self._own[chunk].slot, is_forward=is_forward)
        ports: Iterable[str] = (COMPUTED if self._waits_for_sends else _POSTED,)
        builder.receive(name, self._message_bytes, self._npu_of(source[0]), tag, ports)
        if self._plan.scatter_gather and not self._plan.sequence_parallel:
            s = self._shard
            builder.add("", all_gather(s, "received", s.tokens * s.model.hidden))

    def _send(self, builder: BlockBuilder, chunk: int, *, is_forward: bool) -> None:
        target = self._beside(chunk, is_forward=is_forward)
        if target is not None:
            slot = self._own[chunk].slot
            tag = self._tag(slot if is_forward else slot - 1, is_forward=is_forward)
            builder.send("pp:send", self._message_bytes, self._npu_of(target[0]), tag)

    def _beside(self, chunk: int, *, is_forward: bool) -> tuple[int, int] | None:
        beside = pipeline.after if is_forward else pipeline.before
        return beside(self._schedule, self._stage, chunk, self._plan.pp, len(self._own))

    @staticmethod
    def _tag(boundary: int, *, is_forward: bool) -> int:
        return 2 * boundary + (not is_forward)

    def _npu_of(self, stage: int) -> int:
        return self._npu + (stage - self._stage) * stage_size(self._plan)

    @cached_property
    def _message_bytes(self) -> int:
        """Of activations between stages: b s h / cp values; a tensor-parallel share where all have another one."""
        s, plan = self._shard, self._plan
        size = s.tokens * s.model.hidden * s.value_bytes
        return -(-size // plan.tp) if plan.scatter_gather or plan.sequence_parallel else size


def _of_kind(items: Items, kind: str) -> Items:
    return items if kind == "backward" else only(items, weights=kind == "weights")


def refuse_too_large(plan: ParallelPlan) -> None:
    """Raise WorkloadError if a trace would have more micro-batches than tags of messages can tell."""
    if plan.pp > 1 and micro_batches(plan) * plan.steps >= 1 << 20:
        raise WorkloadError(
            f"plan {plan}: {micro_batches(plan)} micro-batches and {plan.steps} steps, expected below 2^20 together"
        )

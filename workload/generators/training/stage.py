"""Trace of one NPU: blocks that are stamped in the order of the pipeline schedule, and the end of the step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from nadi.et import TraceColumns, TraceTable
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import pairs, stages, step_end
from nadi.workload.generators.training.blocks import (
    COMPUTED,
    EXCHANGED,
    OWN,
    QUEUED,
    BlockBuilder,
    BlockLink,
    FinishedBlock,
    Ring,
)
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items, only
from nadi.workload.generators.training.linear import all_gather, weights_casts
from nadi.workload.generators.training.pairs import PassPart
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.pipeline import Work
from nadi.workload.generators.training.replicas import Replicas
from nadi.workload.generators.training.units import HEAD, ModelUnit, units

_POSTED = {"forward": "posted forward", "backward": "posted backward"}
"""Port of the receive of a pass: the computation after which the receive is posted."""
NO_ROWS: Mapping[str, list[int]] = MappingProxyType({})
_PREFIX = {"forward": "forward", "backward": "backward", "weights": "backward-weights"}
_PIPELINE_TAGS = 1 << 23
"""Number of message tags for pipeline parallelism; context parallelism uses the tags from here on."""


@dataclass
class _State:
    """Rows of the trace so far that later blocks wait for, by port."""

    rows: dict[str, list[int]] = field(default_factory=dict)

    def after(self, block: FinishedBlock, pass_rows: Mapping[str, list[int]] = NO_ROWS) -> dict[str, list[int]]:
        """Return the rows to which a block connects, by port.

        Args:
            block: The block to stamp.
            pass_rows: The rows by port of a pass that alternates with another pass; they take precedence.
        """
        rows = {**self.rows, **pass_rows} if pass_rows else self.rows
        return {port: rows[port] for port in block.ports if port in rows}

    def advance(self, block: FinishedBlock, first_row: int) -> None:
        """Record that a block was stamped into the trace.

        Args:
            block: The block that was stamped.
            first_row: The row of the trace that the block's first row became.
        """
        if block.ends:
            self.rows.update(dict.fromkeys(_POSTED.values(), self.rows.get(COMPUTED, [])))
            self.rows[COMPUTED] = [first_row + row for row in block.ends]
        for name, row in (*block.last.items(), *block.keys.items()):
            self.rows[name] = [first_row + row]

    def wait_for_messages(self, sent: list[int]) -> None:
        """Let the next pass wait for sends, and post its receive after the last computation.

        Args:
            sent: The rows of the sends.
        """
        self.rows.update(dict.fromkeys(_POSTED.values(), self.rows[COMPUTED]))
        self.rows[COMPUTED] = [*self.rows[COMPUTED], *sent]

    def advance_alternately(self, block: FinishedBlock, first_row: int, pass_rows: dict[str, list[int]]) -> None:
        """Record that a block was stamped into the trace, of a pass that alternates with another pass.

        The other pass does not wait for this pass's collectives, so these go into `pass_rows`.

        Args:
            block: The block that was stamped.
            first_row: The row of the trace that the block's first row became.
            pass_rows: The rows of this pass by port, to which the block's are added.
        """
        ends = [first_row + row for row in block.ends]
        if block.link == BlockLink.BESIDE:  # the host launches nothing for either pass until it has read a number
            self.rows[COMPUTED] = [*self.rows.get(COMPUTED, []), *([first_row + block.host] if block.host >= 0 else [])]
        elif block.computed >= 0:
            self.rows[COMPUTED] = [first_row + block.computed]
        if block.link == BlockLink.GATE:
            self.rows[COMPUTED] = sorted({*self.rows.get(COMPUTED, []), *ends})
        if ends and block.link != BlockLink.GPU:
            pass_rows[OWN] = ends
        if block.exchanged:
            self.rows[EXCHANGED] = [first_row + row for row in block.exchanged]
        for name, row in block.last.items():
            self.rows[name] = [first_row + row]
        for name, row in block.keys.items():
            pass_rows[name] = [first_row + row]


def passes_of_chunk(model: Model, plan: ParallelPlan, chunk: stages.Chunk) -> tuple[Items, Items]:
    """Return the items of a forward and a backward pass of a chunk, without its messages and collectives of replicas.

    Args:
        model: The architecture of the model.
        plan: The settled parallel plan.
        chunk: The layers of the chunk, and whether it has an end of the model.
    """
    of_chunk = units(stages.Shard(model, plan), chunk, has_embedding=chunk.is_first)
    backward = [item for unit in reversed(of_chunk) for item in unit.backward]
    return [item for unit in of_chunk for item in unit.forward], backward


class _Pass(NamedTuple):
    """The blocks of a pass."""

    blocks: Sequence[FinishedBlock]  # Blocks in order
    kind: str  # Kind of the pass: "forward", "backward" or "weights"
    prefix: str  # Prefix of their names
    micro_batch: int  # Number of the micro-batch


class Stage:
    """Generator of the trace of one NPU, for a settled plan that passed the rules."""

    def __init__(self, model: Model, plan: ParallelPlan, framework: str, npu: int) -> None:
        """Describe the pipeline stage of NPU number `npu` of a plan; framework: name of the training framework."""
        rank = stages.place(plan, npu)
        self._plan, self._npu, self._stage = plan, npu, rank.stage
        self._pipeline = stages.pipeline_of(plan)
        self._shard = stages.Shard(model, plan, rank.ep)
        self._chunks: Sequence[stages.Chunk] = stages.chunks(model, plan)[rank.stage]
        self._ring = Ring(*stages.neighbours(plan, npu))
        has_embedding = any(chunk.is_first for chunk in self._chunks)
        self._replicas = [
            Replicas(
                plan,
                framework,
                units(self._shard, chunk, has_embedding=has_embedding),
                number,
                is_first=chunk.slot == 0,
                is_other=plan.is_mirrored and chunk.slot >= plan.pp // 2,
            )
            for number, chunk in enumerate(self._chunks)
        ]
        self._blocks: dict[tuple[str, int, bool, bool, bool, bool], list[FinishedBlock]] = {}
        self._tags_per_micro_batch = 2 * self._pipeline.slices  # one for each slice and direction
        # Whether the next computation waits for the stage's sends. The plain schedules of Megatron-LM and DeepSpeed
        # wait. Interleaved schedules with overlap_p2p_comm, and those of PyTorch, do not.
        waits = {"always": True, "without overlap": not plan.overlap_p2p, "never": False}
        self._waits_for_sends = framework != "fsdp" and waits[self._pipeline.WAITS_FOR_SENDS]
        # Bytes of activations that a GPU sends to the next stage: b s h / cp values, or a 1 / tp share of them
        size, is_shared = self._shard.tokens * model.hidden * self._shard.value_bytes, plan.sequence_parallel
        self._message_bytes = -(-size // plan.tp) if plan.scatter_gather or is_shared else size
        self._columns, self._state = TraceColumns(npu, ""), _State()  # those of `table`

    def table(self, global_batch: int | None = None) -> TraceTable:
        """Return the whole trace.

        Args:
            global_batch: The sequences of a step; None = the plan's. Passes are equal whatever their number.
        """
        self._columns, self._state = TraceColumns(self._npu, f"stage {self._stage}"), _State()
        plan = self._plan if global_batch is None else self._plan.model_copy(update={"global_batch": global_batch})
        works = stages.pipeline_of(plan).order(self._stage)
        firsts, lasts = self._ends(works)
        for step in range(self._plan.steps):
            self._stamp(self._gathering, f"step{step}/forward/")
            for number, work in enumerate(works):
                # A paired work alternates with the one behind it, so the first of a pair waits for the second
                is_second = number > 0 and works[number - 1].is_paired
                alternates = work.is_paired or is_second or bool(plan.overlap_ep)
                blocks = self._block(work, alternates, is_first=number in firsts, is_last=number in lasts)
                prefix = f"step{step}/{_PREFIX[work.kind]}/mb{work.micro_batch}/"
                current = _Pass(blocks, work.kind, prefix, work.micro_batch)
                if work.is_paired:
                    previous = current
                    continue
                if alternates:
                    sent = self._stamp_alternately(*([previous] if is_second else []), current)
                else:
                    sent = self._stamp(blocks, prefix, work.micro_batch)
                if self._waits_for_sends:
                    self._state.wait_for_messages(sent)
            self._stamp(self._deferred(stages.micro_batches(plan)), f"step{step}/backward-weights/")
            self._stamp(self._ending, f"step{step}/optimizer/")
        return self._columns.table()

    @staticmethod
    def _ends(works: Sequence[Work]) -> tuple[set[int], set[int]]:
        """Return the indices of the chunks' first forward passes, and of their last passes that end with gradients."""
        firsts: dict[int, int] = {}
        lasts: dict[int, int] = {}
        for number, work in enumerate(works):
            if work.kind == "forward":
                firsts.setdefault(work.chunk, number)
            elif not work.is_split:
                lasts[work.chunk] = number
        return set(firsts.values()), set(lasts.values())

    def _stamp(self, blocks: Sequence[FinishedBlock], prefix: str, micro_batch: int = 0) -> list[int]:
        """Add blocks to the trace one after another, with a prefix of their names; return the rows of their sends."""
        sent: list[int] = []
        for block in blocks:
            after, tag = self._state.after(block), self._tag_of(micro_batch)
            first = self._columns.stamp(block.block, prefix, after=after, tag=tag)
            self._state.advance(block, first)
            sent += [first + row for row in block.sent]
        return sent

    def _stamp_alternately(self, *passes: _Pass) -> list[int]:
        """Stamp the blocks of passes in the order of their places; return the rows of their sends."""
        state, sent = self._state, list[int]()
        before = state.rows.get(COMPUTED, [])
        posted: dict[str, list[int]] = {}
        own: list[dict[str, list[int]]] = [{} for _ in passes]
        ordered = sorted(
            ((block.place, number, block) for number, each in enumerate(passes) for block in each.blocks),
            key=lambda each: each[:2],
        )
        for place, number, block in ordered:
            _, kind, prefix, micro_batch = passes[number]
            if place >= pairs.TAIL:  # the receive of the next pass of the kind is posted when the layers are done
                posted.setdefault(kind, own[number].get(OWN, before))
            after, tag = state.after(block, own[number]), self._tag_of(micro_batch)
            first = self._columns.stamp(block.block, prefix, after=after, tag=tag)
            state.advance_alternately(block, first, own[number])
            sent += [first + row for row in block.sent]
        # What follows waits for the ends of both passes
        ends = (*state.rows[COMPUTED], *(row for rows in own for row in rows.get(OWN, ())))
        state.rows[COMPUTED] = sorted(set(ends))
        for kind, port in _POSTED.items():
            state.rows[port] = posted.get(kind) or next(iter(posted.values()), before)
        if len(passes) == 1:
            state.rows.update((key, rows) for key, rows in own[0].items() if key != OWN)
        return sent

    def _tag_of(self, micro_batch: int) -> int:
        distinct = _PIPELINE_TAGS // self._tags_per_micro_batch
        # Tags repeat only after more micro-batches than can be on their way
        return micro_batch % distinct * self._tags_per_micro_batch

    @cached_property
    def _gathering(self) -> list[FinishedBlock]:
        """Blocks before the first forward pass, with the parameter all-gathers that overlap it."""
        builder = BlockBuilder()
        builder.add("", step_end.beginning(self._shard, self._replicas))
        for replicas in self._replicas:
            if replicas.gathers_beside:
                builder.add("", replicas.gathers(is_overlapped=True))
        return builder.finish()

    def _deferred(self, num_micro_batches: int) -> list[FinishedBlock]:
        """Return the blocks of the deferred gradients of the output layer's weights."""
        # Each product overlaps the gather of the next product's input (drain_embedding_wgrad_compute of
        # megatron/core/utils.py).
        builder = BlockBuilder()
        count = min(self._plan.defer_embedding_wgrad, num_micro_batches)
        for replicas in self._replicas:
            heads = [unit for unit in replicas.units if unit.name == HEAD]
            if not heads or not count:
                continue
            items = only(heads[0].backward, weights=True)
            gathers = [item for item in items if isinstance(item, GroupCollective)]
            products = [item for item in items if isinstance(item, Compute)]
            # One round behind: in round k the gather for product k runs beside product k - 1
            for number in range(count + 1):
                if number < count:
                    builder.add("", [_numbered(item, number) for item in gathers])
                if number > 0:
                    builder.add("", [_numbered(item, number - 1) for item in products])
            builder.add("", replicas.after_deferred())
        return builder.finish()

    @cached_property
    def _ending(self) -> list[FinishedBlock]:
        """Blocks of the items after the last backward pass."""
        builder = BlockBuilder()
        for replicas in self._replicas:
            builder.add("", replicas.after_all())
        builder.wait(QUEUED)
        is_at_an_end = any(chunk.is_first or chunk.is_last for chunk in self._chunks)
        has_loss = [r for r, chunk in zip(self._replicas, self._chunks, strict=True) if chunk.is_last]
        builder.add("", step_end.items(self._shard, self._replicas, has_loss, is_at_an_end=is_at_an_end))
        return builder.finish()

    def _block(self, stage_pass: Work, is_alternating: bool, *, is_first: bool, is_last: bool) -> list[FinishedBlock]:
        """Return the blocks of a pass; is_first, is_last: whether it is the chunk's first or last one in a step."""
        # is_alternating: whether its blocks alternate with those of another pass.
        kind = "backward-data" if stage_pass.is_split else stage_pass.kind
        defers = stage_pass.micro_batch < self._plan.defer_embedding_wgrad
        # All that the rows of a pass depend on: other micro-batches stamp the same blocks again
        key = kind, stage_pass.chunk, is_alternating, is_first, is_last, defers
        if key not in self._blocks:
            builder = BlockBuilder(self._ring, cuts=is_alternating)
            parts = self._parts(kind, stage_pass.chunk, alternates=is_alternating, defers=defers)
            if kind == "forward":
                self._forward(builder, parts, stage_pass.chunk, is_first=is_first)
            else:
                self._backward(builder, parts, kind, stage_pass.chunk, is_last=is_last)
            self._blocks[key] = builder.finish()
        return self._blocks[key]

    def _forward(self, builder: BlockBuilder, parts: Sequence[PassPart], chunk_number: int, *, is_first: bool) -> None:
        """Add a forward pass of a chunk to a builder; is_first: the pass is the chunk's first one of the step."""
        replicas = self._replicas[chunk_number]
        builder.begin(pairs.RECEIVE["forward"], BlockLink.GATE)
        self._receive(builder, chunk_number, is_forward=True)
        for part in parts:
            unit = replicas.units[part.unit]
            builder.begin(part.place, part.link)
            if part.begins:
                begun, awaited = replicas.before_forward(part.unit, is_first=is_first)
                builder.add("", begun)
                builder.wait(awaited)
                builder.add(unit.layer, weights_casts(self._shard, unit.tensors) if is_first else [])
            builder.add(unit.layer, part.items)
            if part.ends and unit.name == HEAD:
                builder.add(unit.layer, step_end.after_loss(self._shard, replicas))
            if part.ends and unit.kept:
                builder.note("outputs", _kept(unit))
            builder.add(unit.layer, step_end.after_forward(self._shard, unit) if part.ends else [])
        builder.begin(pairs.SEND["forward"], BlockLink.BESIDE)
        self._send(builder, chunk_number, is_forward=True)

    def _backward(
        self, builder: BlockBuilder, parts: Sequence[PassPart], kind: str, chunk_number: int, *, is_last: bool
    ) -> None:
        """Add a backward pass of a chunk; kind: "backward", or of a split pass "backward-data" or "weights"."""
        # is_last: the pass is the chunk's last one of the step
        replicas = self._replicas[chunk_number]
        builder.begin(pairs.RECEIVE["backward"], BlockLink.GATE)
        if kind != "weights":
            self._receive(builder, chunk_number, is_forward=False)
        for part in parts:
            unit = replicas.units[part.unit]
            builder.begin(part.place, part.link)
            if part.begins and kind != "weights":  # products for weight gradients do not read parameters
                begun, awaited = replicas.before_backward(part.unit)
                builder.add("", begun)
                builder.wait(awaited)
                loads, awaited = step_end.before_backward(self._shard, replicas.units, part.unit)
                builder.add("", loads)
                builder.wait(awaited)
            for item in part.items:
                builder.add(unit.layer, [item])
                if part.is_divided:
                    builder.end_row()
            if part.ends and kind != "backward-data":
                if unit.name == "attention":  # the first of its layer, the MLP is the last
                    builder.note("inputs", _kept(replicas.units[part.unit + 1]))
                builder.add("", replicas.after_backward(part.unit, is_last=is_last))
        if kind != "backward-data":
            builder.add("", replicas.after_micro_batch())
            builder.wait(replicas.awaited_after_micro_batch())
        if kind != "weights":
            builder.begin(pairs.SEND["backward"], BlockLink.BESIDE)
            self._send(builder, chunk_number, is_forward=False)

    def _parts(self, kind: str, chunk_number: int, *, alternates: bool, defers: bool) -> list[PassPart]:
        """Return the parts of a pass: those of `pairs` if it alternates with another pass, else whole units."""
        # defers: the gradient of the output layer's weights is left for the end of the step.
        units = self._replicas[chunk_number].units
        if defers:
            units = [
                unit._replace(backward=only(unit.backward, weights=False)) if unit.name == HEAD else unit
                for unit in units
            ]
        if alternates:
            # Output layers whose parameters are gathered keep their turn among the gathers
            of_kind = pairs.forward_parts if kind == "forward" else pairs.backward_parts
            return of_kind(units, moves_output=not self._replicas[chunk_number].shares_parameters)
        numbers = range(len(units)) if kind == "forward" else reversed(range(len(units)))
        halves = {
            "forward": lambda unit: unit.forward,
            "backward": lambda unit: unit.backward,
            "backward-data": lambda unit: only(unit.backward, weights=False),
            "weights": lambda unit: only(unit.backward, weights=True),
        }
        return [PassPart(0, BlockLink.BOTH, halves[kind](units[number]), number) for number in numbers]

    def _receive(self, builder: BlockBuilder, chunk_number: int, *, is_forward: bool) -> None:
        """Add the receive with which a pass of a chunk begins, unless it begins at an end of the model."""
        source = self._pipeline.beside(self._stage, chunk_number, -1 if is_forward else 1)
        if source is None:
            return
        slot = self._chunks[chunk_number].slot
        # The boundary between two slices has the number of the earlier slice, the same at sender and receiver
        tag = self._tag(slot - 1 if is_forward else slot, is_forward=is_forward)
        posted = _POSTED["forward" if is_forward else "backward"]
        builder.receive("pp:receive", self._message_bytes, self._npu_of(source), tag, (posted,))
        if self._plan.scatter_gather and not self._plan.sequence_parallel:
            shard = self._shard
            builder.add("", all_gather(shard, "received", shard.tokens * shard.model.hidden))

    def _send(self, builder: BlockBuilder, chunk_number: int, *, is_forward: bool) -> None:
        """Add the send with which a pass of a chunk ends, unless it ends at an end of the model."""
        target = self._pipeline.beside(self._stage, chunk_number, 1 if is_forward else -1)
        if target is not None:
            slot = self._chunks[chunk_number].slot
            tag = self._tag(slot if is_forward else slot - 1, is_forward=is_forward)
            builder.send("pp:send", self._message_bytes, self._npu_of(target), tag)

    @staticmethod
    def _tag(boundary: int, *, is_forward: bool) -> int:
        return 2 * boundary + (not is_forward)

    def _npu_of(self, stage: int) -> int:
        return self._npu + (stage - self._stage) * stages.stage_size(self._plan)


def _kept(unit: ModelUnit) -> str:
    """Return the attribute text for the activations that a layer keeps per micro-batch."""
    return f"{unit.layer}/activations {unit.kept}"


def _numbered(item: GroupCollective | Compute, micro_batch: int) -> GroupCollective | Compute:
    """Return an item with name and keys that are unique to the micro-batch."""
    needs = tuple(f"{key} {micro_batch}" for key in item.needs)
    name = f"mb{micro_batch}/head/{item.name}"
    if isinstance(item, GroupCollective):
        return item._replace(name=name, needs=needs, key=item.key and f"{item.key} {micro_batch}")
    return item._replace(name=name, needs=needs)

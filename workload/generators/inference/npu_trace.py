"""Trace of one NPU that serves: a sequence of iterations, layer by layer.

Computations form a chain. The first stage waits for requests to arrive (`arrivals/request3`, on the host's lane), later
stages wait for the previous stage, and the next iteration of a batch waits for the tokens of its last iteration, which
the last stage sends back. On the last stage, nodes without duration mark a request's first and last token
(`.../request3/token128`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nadi.et import Block, TraceColumns, TraceTable
from nadi.workload.generators.inference import ops
from nadi.workload.generators.inference.deployment import Engine
from nadi.workload.generators.inference.requests import Request
from nadi.workload.generators.inference.scheduler import Iteration
from nadi.workload.generators.training import linear, units
from nadi.workload.generators.training.blocks import COMPUTED, BlockBuilder, FinishedBlock
from nadi.workload.generators.training.item_lists import Items
from nadi.workload.generators.training.ranks import place, stage_size
from nadi.workload.generators.training.shard import Shard
from nadi.workload.generators.training.stages import chunks

_ACTIVATIONS, _TOKENS, _CACHE = 0, 1, 2  # Message tags; requests number their tags from _CACHE on
_CACHE_TAGS = 1 << 22  # Number of distinct tags for KV caches of requests
_TOKEN_BYTES = 4  # Bytes of a token id that the last stage sends back


class Transfer(NamedTuple):
    """Keys and values that an NPU sends or receives for a request."""

    name: str  # Prefix of the message's name: "layer3/", or "" for several layers
    layer: int  # Number of the layer after which it is sent: the last layer in the message
    peer: int  # Number of the other NPU
    bytes: int  # Message size in bytes


Transfers = Callable[[Request], Sequence[Transfer]]


def no_transfers(_request: Request) -> Sequence[Transfer]:
    """Return no transfers, for an engine that keeps its cache.

    Args:
        _request: A request, which is not used.
    """
    return ()


class NpuTrace:
    """Generator of the trace of one NPU."""

    # `transfers` returns the keys and values of a request that the NPU sends (if the engine does not decode) or
    # receives (if it does not prefill).

    def __init__(self, engine: Engine, npu: int, transfers: Transfers = no_transfers) -> None:
        """Find the NPU's ranks, layers and iterations.

        Args:
            engine: The engine that the NPU belongs to.
            npu: The number of the NPU.
            transfers: A function that returns the keys and values of a request that the NPU sends (if the engine does
                not decode) or receives (if it does not prefill).
        """
        plan, local = engine.plan, npu - engine.first
        self._engine, self._plan, self._npu, self._transfers = engine, plan, npu, transfers
        self._rank = place(plan, local)
        self._iterations = engine.schedule.iterations[self._rank.dp]
        first = local - self._rank.ep * plan.etp
        self._members = [place(plan, first + rank * plan.etp) for rank in range(plan.ep)]
        self._chunk = chunks(engine.model, plan)[self._rank.stage][0]
        self._shard = Shard(engine.model, plan, self._rank.ep)
        self._columns = TraceColumns(npu, f"stage {self._rank.stage}")
        self._last: list[int] = []
        self._arrived: dict[int, int] = {}
        self._blocks: dict[tuple[object, ...], list[FinishedBlock]] = {}

    def table(self) -> TraceTable:
        """Return the whole trace."""
        if self._chunk.is_first and self._engine.role.prefills:
            self._arrive()
        needed_by = self._needed_tokens()
        needed = set(needed_by.values())
        for iteration in self._iterations:
            prefix = f"iteration{iteration.number}/{iteration.name}/"
            if iteration.batch.tokens:
                self._pass(prefix, iteration, needed_by.get(iteration.number), has_next=iteration.number in needed)
            else:
                self._idle(prefix, iteration)
        return self._columns.table()

    def _needed_tokens(self) -> dict[int, int]:
        """Return the number of the earlier iteration of the lane whose tokens an iteration needs, by its own number."""
        needed: dict[int, int] = {}
        latest: dict[int, Iteration] = {}
        for iteration in self._iterations if self._plan.pp > 1 else ():  # one stage needs no messages
            if iteration.batch.tokens:
                earlier = latest.get(iteration.lane)
                if earlier is not None and earlier.batch.sampled:
                    needed[iteration.number] = earlier.number
                latest[iteration.lane] = iteration
        return needed

    def _arrive(self) -> None:
        """Add a chain of host nodes that end at the arrival times of requests."""
        now, row = 0, -1
        for request in self._engine.requests[self._rank.dp]:
            block = Block()
            gap = request.arrival_us - now
            block.comp("", duration_micros=gap, is_cpu_op=True, after=["before"])
            after = {"before": [row]} if row >= 0 else None
            row = self._columns.stamp(block, f"arrivals/request{request.number}", after=after)
            self._arrived[request.number], now = row, request.arrival_us

    def _pass(self, prefix: str, iteration: Iteration, previous_number: int | None, *, has_next: bool) -> None:
        """Add an iteration with tokens, with a prefix of its nodes' names."""
        # It needs the tokens of iteration previous_number, unless that is None; has_next: whether a later one needs its
        # own tokens.
        batch = iteration.batch
        shard = ops.shard(self._shard, batch.tokens)
        size = batch.tokens * shard.model.hidden * shard.value_bytes
        awaited = [self._arrived[r.number] for r in iteration.joined if r.number in self._arrived]
        if not self._chunk.is_first:
            awaited.append(self._message(Block.recv, f"{prefix}pp:receive", size, self._beside(-1), _ACTIVATIONS))
        elif previous_number is not None:
            token_bytes = self._iterations[previous_number].batch.sampled * _TOKEN_BYTES
            name = f"{prefix}pp:receive-tokens"
            awaited.append(self._message(Block.recv, name, token_bytes, self._beside(-1), _TOKENS))
        if not self._engine.role.prefills:
            awaited += self._receive_cache(prefix, iteration.joined)
        self._last += awaited
        if self._chunk.is_first:
            self._stamp(f"{prefix}embedding/", self._block(("embedding", shard.tokens), lambda: units.embedding(shard)))
        for number in self._chunk.layers:
            self._stamp(f"{prefix}layer{number}/", self._layer(shard, iteration, number))
            if not self._engine.role.decodes:
                self._send_cache(prefix, iteration.prompted, number)
        if not self._chunk.is_last:
            self._message(Block.send, f"{prefix}pp:send", size, self._beside(1), _ACTIVATIONS)
            return
        self._stamp(f"{prefix}head/", self._block(("head", batch.sampled), lambda: ops.head_items(shard, batch)))
        if has_next:
            token_bytes = batch.sampled * _TOKEN_BYTES
            self._message(Block.send, f"{prefix}pp:send-tokens", token_bytes, self._beside(1), _TOKENS)
        self._mark(prefix, iteration.marks)

    def _layer(self, shard: Shard, iteration: Iteration, layer_number: int) -> list[FinishedBlock]:
        """Return the blocks of a layer in an iteration."""
        batch = iteration.batch
        if not shard.model.has_experts(layer_number):
            return self._block(("layer", batch), lambda: [*ops.attention_items(shard, batch), *linear.forward(shard)])
        # Without imbalance all layers with experts have the same work, and share a block
        rows, layer = self._rows(iteration), layer_number if self._plan.imbalance else -1
        return self._block(
            ("experts", batch, rows, layer),
            lambda: [*ops.attention_items(shard, batch), *ops.items(shard, layer_number, rows)],
        )

    def _idle(self, prefix: str, iteration: Iteration) -> None:
        """Add an iteration without tokens, in which the replica's experts process the tokens of other replicas."""
        rows = self._rows(iteration)
        for number in self._chunk.layers:
            if self._shard.model.has_experts(number):
                layer = number if self._plan.imbalance else -1
                make = lambda number=number: ops.idle(self._shard, number, rows)  # noqa: E731 - the same
                self._stamp(f"{prefix}layer{number}/", self._block(("idle", rows, layer), make))

    def _rows(self, iteration: Iteration) -> tuple[int, ...]:
        """Return the number of tokens that each member of the expert-parallel group routes."""
        return member_rows(self._engine, [(each.dp, each.tp) for each in self._members], iteration.number)

    def _mark(self, prefix: str, tokens_of_requests: Iterable[tuple[int, int]]) -> None:
        """Add nodes without duration that mark (request number, token number), with a prefix of their names."""
        block = Block()
        rows = [
            block.comp(f"request{number}/token{token}", num_ops=0, tensor_size=0, after=[COMPUTED])
            for number, token in tokens_of_requests
        ]
        if rows:
            first = self._columns.stamp(block, prefix, after={COMPUTED: self._last})
            self._last = [first + row for row in rows]

    def _block(self, key: tuple[object, ...], make_items: Callable[[], Items]) -> list[FinishedBlock]:
        """Return the blocks of items with a key, built once."""
        if key not in self._blocks:
            builder = BlockBuilder()
            builder.add("", make_items())
            self._blocks[key] = builder.finish()
        return self._blocks[key]

    def _stamp(self, prefix: str, blocks: Sequence[FinishedBlock]) -> None:
        """Add blocks to the trace one after another, with a prefix of their names."""
        for finished in blocks:
            first = self._columns.stamp(finished.block, prefix, after={COMPUTED: self._last})
            self._last = [first + row for row in finished.ends]

    def _message(self, add: Callable[..., int], name: str, size_bytes: int, peer: int, tag: int) -> int:
        """Add a message after the last computation and return its row; add: `Block.send` or `Block.recv`."""
        block = Block()
        add(block, "", size_bytes, peer=peer, tag=tag, after=[COMPUTED])
        return self._columns.stamp(block, name, after={COMPUTED: self._last})

    def _receive_cache(self, prefix: str, requests: Sequence[Request]) -> list[int]:
        """Add the receives of the keys and values of requests, and return their rows."""
        rows = []
        for request in requests:
            for each in self._transfers(request):
                name = f"{prefix}{each.name}request{request.number}/kv:receive"
                rows.append(self._message(Block.recv, name, each.bytes, each.peer, _tag(request)))
        return rows

    def _send_cache(self, prefix: str, requests: Sequence[Request], layer: int) -> None:
        """Add the sends of the keys and values of a layer for requests."""
        for request in requests:
            for each in self._transfers(request):
                if each.layer == layer:
                    name = f"{prefix}{each.name}request{request.number}/kv:send"
                    self._message(Block.send, name, each.bytes, each.peer, _tag(request))

    def _beside(self, stages: int) -> int:
        """Return the NPU with the same ranks `stages` stages later; the first stage follows the last."""
        stage = (self._rank.stage + stages) % self._plan.pp
        return self._npu + (stage - self._rank.stage) * stage_size(self._plan)


def member_rows(engine: Engine, members: Iterable[tuple[int, int]], iteration_number: int) -> tuple[int, ...]:
    """Return how many tokens each of some GPUs routes to experts in an iteration.

    Args:
        engine: The engine that the GPUs belong to.
        members: The replica and the tensor-parallel rank of each GPU.
        iteration_number: The number of the iteration.
    """
    of_replica = engine.schedule.iterations
    return tuple(ops.rows_of(engine.plan, of_replica[dp][iteration_number].batch.tokens, tp) for dp, tp in members)


def _tag(request: Request) -> int:
    return _CACHE + request.number % _CACHE_TAGS

"""Generator of the traces of serving from a model, plans and requests.

Keys and values move from prefill GPUs to decoding GPUs. The ranks of both tensor-parallel groups hold heads in order. A
decoding rank receives each of its heads from a prefill rank that holds it; if several hold it, the decoding ranks are
distributed over them. Every rank holds all compressed keys of latent attention, so that decoding rank i receives them
from prefill rank i modulo the size of its group.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadi.et import Block, NodeType, TraceColumns, TraceTable
from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.inference import ops
from nadi.workload.generators.inference.deployment import Engine, Serving, engines
from nadi.workload.generators.inference.requests import Request, RequestStream, requests_of
from nadi.workload.generators.inference.scheduler import Batch, Iteration, say_nothing
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import stages, units
from nadi.workload.generators.training.blocks import COMPUTED, BlockBuilder, FinishedBlock
from nadi.workload.generators.training.item_lists import Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Shard, chunks, place, stage_size
from nadi.workload.trace_sets.trace_set import Families, TraceSet

# Trace of one NPU that serves: a sequence of iterations, layer by layer.
# Computations form a chain. The first stage waits for requests to arrive (`arrivals/request3`) and for the front end to
# handle them (`arrivals/request3/ready`), later stages wait for the previous stage, and the next iteration of a batch
# waits for the tokens of its last iteration, which the last stage sends back. On the last stage, nodes without duration
# mark a request's first and last token (`.../request3/token128`).
#
# On the host's lane are the scheduler's work for an iteration (`.../host`, before the pass, or `.../host-ahead`, beside
# the previous one) and the launches of an eager pass (`.../launches`), beside its computations. Arrivals are times,
# during which the host works: so they are on the lane of memory, which serving does not use.

# Message tags. Batches in flight number their tags from _TOKENS on, since tokens of one may overtake another's in the
# order in which iterations need them; requests number theirs from _CACHE on.
_ACTIVATIONS, _TOKENS, _CACHE = 0, 1, 1 << 17
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


class _Built(NamedTuple):
    """Blocks of a part of a pass."""

    blocks: list[FinishedBlock]  # Blocks in the order of the pass
    kernels: int  # Number of its operators and collectives


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
        self._software = engine.software
        self._last: list[int] = []
        self._before: list[int] = []  # Last rows before the latest pass
        self._scheduled: list[int] = []  # Row of the host's work for the pass before
        self._kernels = 0  # Number of kernels of the pass so far
        self._arrived: dict[int, int] = {}
        self._is_eager = False  # Whether the host launches the kernels of the pass one by one
        self._blocks: dict[tuple[object, ...], _Built] = {}

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
        """Add a chain of nodes that end at the times when requests arrive and when the scheduler has them."""
        ready_us = self._engine.ready_us
        own = self._engine.requests[self._rank.dp]
        events = [(each.arrival_us, 0, each.number) for each in own]
        events += [(ready_us[each.number], 1, each.number) for each in own if ready_us[each.number] > each.arrival_us]
        now, row = 0, -1
        for at, is_ready, number in sorted(events):
            block = Block()
            values = {"duration_micros": at - now}
            block.add("", NodeType.MEM_LOAD_NODE, values, {"after": ["before"], "attrs": ()})
            after = {"before": [row]} if row >= 0 else None
            row = self._columns.stamp(block, f"arrivals/request{number}{'/ready' * is_ready}", after=after)
            self._arrived[number], now = row, at

    def _pass(self, prefix: str, iteration: Iteration, previous_number: int | None, *, has_next: bool) -> None:
        """Add an iteration with tokens, with a prefix of its nodes' names."""
        # It needs the tokens of iteration previous_number, unless that is None; has_next: whether a later one needs its
        # own tokens.
        batch, software = iteration.batch, self._software
        shard = ops.shard(self._shard, software.rows(batch))
        size = shard.tokens * shard.model.hidden * shard.value_bytes
        awaited = [self._arrived[r.number] for r in iteration.joined if r.number in self._arrived]
        if not self._engine.role.prefills:
            awaited += self._receive_cache(prefix, iteration.joined)
        if not self._chunk.is_first:
            awaited.append(self._message(Block.recv, f"{prefix}pp:receive", size, self._beside(-1), _ACTIVATIONS))
        else:
            awaited = self._schedule(prefix, batch, awaited, self._receive_tokens(prefix, iteration, previous_number))
        self._last += awaited
        begins, self._kernels, self._is_eager = list(self._last), 0, software.is_eager(batch)
        if self._chunk.is_first:
            self._stamp(f"{prefix}embedding/", self._block(("embedding", shard.tokens), lambda: units.embedding(shard)))
        for number in self._chunk.layers:
            self._stamp(f"{prefix}layer{number}/", self._layer(shard, iteration, number))
            if not self._engine.role.decodes:
                self._send_cache(prefix, iteration.prompted, number)
        # The last part of the pass begins when all before it are launched
        self._last += self._host(f"{prefix}launches", software.launches_us(batch, self._kernels), begins)
        if not self._chunk.is_last:
            self._message(Block.send, f"{prefix}pp:send", size, self._beside(1), _ACTIVATIONS)
            return
        make_head = lambda: ops.head_items(shard, batch, software.logits_kernels)  # noqa: E731 - the line is long
        self._stamp(f"{prefix}head/", self._block(("head", batch.sampled), make_head))
        if has_next:
            token_bytes = batch.sampled * _TOKEN_BYTES
            self._message(Block.send, f"{prefix}pp:send-tokens", token_bytes, self._beside(1), _TOKENS + iteration.lane)
        self._mark(prefix, iteration.marks)

    def _receive_tokens(self, prefix: str, iteration: Iteration, previous_number: int | None) -> list[int]:
        """Add the receive of the tokens of an earlier iteration of the lane, None = there is none; return its row."""
        if previous_number is None:
            return []
        token_bytes = self._iterations[previous_number].batch.sampled * _TOKEN_BYTES
        name = f"{prefix}pp:receive-tokens"
        return [self._message(Block.recv, name, token_bytes, self._beside(-1), _TOKENS + iteration.lane)]

    def _schedule(self, prefix: str, batch: Batch, joined: list[int], tokens: list[int]) -> list[int]:
        """Add the host's work for a pass with a prefix of its nodes' names; return the rows that the pass waits for."""
        # joined: rows of new requests that the scheduler waits for; tokens: rows of tokens from the last stage.
        # The work beside a pass begins with that pass, which has the results of the pass before.
        software = self._software
        after = [*joined, *self._before, *self._scheduled]
        beside = self._host(f"{prefix}host-ahead", software.beside_us(batch), after)
        waits = [*joined, *tokens, *beside]
        # With several stages, the scheduler works while they run other batches
        ends = self._last if self._plan.pp == 1 else []
        waited = self._host(f"{prefix}host", software.waited_us(batch), [*waits, *ends])
        self._before, self._scheduled = list(self._last), waited or beside
        return waits + waited

    def _host(self, name: str, duration_us: int, after: Sequence[int]) -> list[int]:
        """Add a node of the host after some rows, and return its row; none if it takes no time."""
        if not duration_us:
            return []
        block = Block()
        block.comp("", duration_micros=duration_us, is_cpu_op=True, after=["before"])
        return [self._columns.stamp(block, name, after={"before": list(dict.fromkeys(after))})]

    def _layer(self, shard: Shard, iteration: Iteration, layer_number: int) -> list[FinishedBlock]:
        """Return the blocks of a layer in an iteration."""
        batch = iteration.batch
        if not shard.model.has_experts(layer_number):
            return self._block(("layer", batch), lambda: [*ops.attention_items(shard, batch), *ops.mlp_items(shard)])
        # Without imbalance all layers with experts have the same work, and share a block
        rows, layer = self._rows(iteration), layer_number if self._plan.imbalance else -1
        return self._block(
            ("experts", batch, rows, layer),
            lambda: [*ops.attention_items(shard, batch), *ops.items(shard, layer_number, rows)],
        )

    def _idle(self, prefix: str, iteration: Iteration) -> None:
        """Add an iteration without tokens, in which the replica's experts process the tokens of other replicas."""
        rows, self._is_eager = self._rows(iteration), False
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
        """Return the blocks of items with a key, built once, and count their kernels."""
        key = (*key, self._is_eager)
        if key not in self._blocks:
            builder, items = BlockBuilder(), make_items()
            builder.add("", ops.eager(items) if self._is_eager else items)
            self._blocks[key] = _Built(builder.finish(), ops.kernels(items))
        self._kernels += self._blocks[key].kernels
        return self._blocks[key].blocks

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


_NODES_PER_LAYER = 14  # Maximum number of nodes per layer and iteration, without transfers of keys and values


def generate(serving: Serving, requests: RequestStream | Path | Iterable[Request]) -> TraceSet:
    """Return the traces of all NPUs that serve a model. Raises WorkloadError: requests or plans do not fit the model.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        requests: Random requests, the path of a CSV file of requests, or the requests themselves.
    """
    return traces_of(serving, engines(serving, requests_of(requests)))


def nodes_at_least(serving: Serving, requests: Sequence[Request]) -> int:
    """Return a lower bound of the number of nodes of the traces, without scheduling.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        requests: The requests to serve.
    """
    # An iteration generates at most one token of each running sequence and has at least one node per layer.
    return sum(request.generate - 1 for request in requests) // serving.batch * serving.model.layers


def nodes_at_most(serving: Serving, all_engines: Sequence[Engine]) -> int:
    """Return an upper bound of the number of nodes of the engines' distinct traces together.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        all_engines: One engine for all phases, or a prefill engine and a decoding engine.
    """
    layers, total = serving.model.layers + 4, 0
    moved = sum(len(own) for own in all_engines[0].requests) if len(all_engines) > 1 else 0
    for engine in all_engines:
        iterations = sum(len(own) for own in engine.schedule.iterations)
        distinct_ranks = engine.plan.tp if _ranks_differ(engine) else 1
        requests = sum(len(own) for own in engine.requests)
        total += distinct_ranks * (iterations * layers * _NODES_PER_LAYER + 4 * requests)
        total += moved * layers * engine.plan.tp
    return total


def traces_of(serving: Serving, all_engines: Sequence[Engine], report: Callable[[str], None] = say_nothing) -> TraceSet:
    """Return the traces of engines.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        all_engines: One engine for all phases, or a prefill engine and a decoding engine.
        report: A function that is called with texts about the progress.
    """
    transfers = _transfers(serving, all_engines)
    traces: list[TraceTable] = []
    examples: list[int] = []
    trace_of_npu: list[int] = []
    for engine in all_engines:
        number_of: dict[tuple[object, ...], int] = {}
        ranks_differ = _ranks_differ(engine)
        for npu in range(engine.first, engine.first + engine.plan.gpus):
            rank = stages.place(engine.plan, npu - engine.first)
            routed = _relative(transfers(engine, npu), engine, rank.dp, npu)
            # NPUs with equal keys have the same trace, with peers counted from the NPU
            key = (rank.stage, rank.dp, rank.tp if ranks_differ else 0, routed)
            if key not in number_of:
                number_of[key] = len(traces)
                examples.append(npu)
                report(f"trace {len(traces) + 1}, of NPU {npu}")
                traces.append(NpuTrace(engine, npu, transfers(engine, npu)).table())
            trace_of_npu.append(number_of[key])
    used = {name for trace in traces for name in trace.group_names}
    families = {name: groups for name, groups in _families(all_engines).items() if name in used}
    return TraceSet(traces, np.array(trace_of_npu, np.int32), np.array(examples, np.int32), families)


def _families(all_engines: Sequence[Engine]) -> Families:
    """Return the groups of all engines by family."""
    families: dict[str, tuple[tuple[int, ...], ...]] = {}
    for engine in all_engines:
        for name, groups in stages.families(engine.plan).items():
            shifted = tuple(tuple(npu + engine.first for npu in group) for group in groups)
            families[name] = (*families.get(name, ()), *shifted)
    return families


def _ranks_differ(engine: Engine) -> bool:
    """Return whether GPUs of a tensor-parallel group have different work: other tokens, or other experts."""
    plan, model = engine.plan, engine.model
    if model.experts is None or plan.ep == 1:
        return False
    places = [stages.place(plan, npu) for npu in range(stages.stage_size(plan))]
    groups = {tuple((each.dp, each.tp) for each in places[at : at + plan.ep]) for at in range(0, len(places), plan.ep)}
    for group in groups:
        for number in range(len(engine.schedule.iterations[group[0][0]])):
            if not ops.flow(plan, model.experts, member_rows(engine, group, number), 0).is_even:
                return True
    return False


def _relative(transfers: Transfers, engine: Engine, replica: int, npu: int) -> tuple[tuple[int, int], ...]:
    """Return relative peers and bytes of an NPU's transfers, which distinguish it from other NPUs of its stage."""
    moved = (request for request in engine.requests[replica] if transfers(request))
    # One request is enough: all have the same routes, and their bytes are in proportion to the prompts
    first = next(moved, None)
    return () if first is None else tuple((each.peer - npu, each.bytes) for each in transfers(first))


def _transfers(serving: Serving, all_engines: Sequence[Engine]) -> Callable[[Engine, int], Transfers]:
    """Return a function of an engine and an NPU that returns the NPU's function from requests to transfers."""
    if len(all_engines) == 1:
        return lambda _engine, _npu: no_transfers
    before, after = all_engines
    all_routes = routes(serving.model, before.plan, after.plan)
    replica_of = [
        {request.number: replica for replica, own in enumerate(engine.requests) for request in own}
        for engine in all_engines
    ]

    def of(engine: Engine, npu: int) -> Transfers:
        """Return the function that returns the transfers of NPU `npu` of an `engine` for a request."""
        sends = engine is before
        other, place = after if sends else before, stages.place(engine.plan, npu - engine.first)
        own_routes = [route for route in all_routes if (route.source if sends else route.target) == place.tp]
        pieces = _pieces(serving, engine, other, place.stage)
        other_size = stages.stage_size(other.plan)

        @cache
        def transfers(request: Request) -> tuple[Transfer, ...]:
            """Return the transfers of the NPU for a `request`: one per piece of a stage's layers and peer."""
            replica = replica_of[sends].get(request.number)
            if replica is None:  # the prefill generates the request's only token
                return ()
            first = other.first + replica * other.plan.tp
            moved = []
            for name, layer, stage, layers in pieces:
                for route in own_routes:
                    peer = first + stage * other_size + (route.target if sends else route.source)
                    moved.append(Transfer(name, layer, peer, route.token_bytes * layers * request.prompt))
            return tuple(moved)

        return transfers

    return of


def _pieces(serving: Serving, engine: Engine, other_engine: Engine, stage: int) -> list[tuple[str, int, int, int]]:
    """Return name, last layer, stage of the other engine, and number of layers of each message of a stage."""
    model = serving.model
    stage_of = {
        layer: number for number, (chunk,) in enumerate(chunks(model, other_engine.plan)) for layer in chunk.layers
    }
    layers = chunks(model, engine.plan)[stage][0].layers
    if serving.transfer == "layer":
        return [(f"layer{layer}/", layer, stage_of[layer], 1) for layer in layers]
    layers_of_stage = Counter(stage_of[layer] for layer in layers)
    return [("", max(layers), number, count) for number, count in layers_of_stage.items()]


class Route(NamedTuple):
    """Route from a prefill rank to a decoding rank."""

    source: int  # Tensor-parallel rank of the prefill GPU
    target: int  # Tensor-parallel rank of the decoding GPU
    token_bytes: int  # Bytes per layer and token


def routes(model: Model, prefill_plan: ParallelPlan, decode_plan: ParallelPlan) -> tuple[Route, ...]:
    """Return the routes between a prefill replica and a decoding replica, sorted by source and target.

    Args:
        model: The architecture of the model.
        prefill_plan: The plan of the GPUs that compute prompts.
        decode_plan: The plan of the GPUs that decode.
    """
    value_bytes = int(DTYPE_BYTES[decode_plan.dtype])
    if model.latent is not None:
        size = (model.latent.key_value_rank + model.latent.rope_dim) * value_bytes
        return tuple(sorted(Route(target % prefill_plan.tp, target, size) for target in range(decode_plan.tp)))
    heads: dict[tuple[int, int], int] = {}
    for head in range(model.key_value_heads):
        sources, targets = _holders(model, prefill_plan.tp, head), _holders(model, decode_plan.tp, head)
        for number, target in enumerate(targets):
            # Spread the decoding ranks that hold the head evenly over the prefill ranks that hold it
            pair = sources[number * len(sources) // len(targets)], target
            heads[pair] = heads.get(pair, 0) + 1
    size = (model.query_dim + model.value_dim) * value_bytes
    return tuple(Route(source, target, count * size) for (source, target), count in sorted(heads.items()))


def _holders(model: Model, tp: int, head: int) -> range:
    """Return the tensor-parallel ranks, of `tp`, that hold a head of keys and values."""
    heads = model.key_value_heads
    if tp <= heads:
        rank = head // (heads // tp)
        return range(rank, rank + 1)
    # With 2 heads on 8 ranks each has 4 copies: head 1 is on ranks 4 to 7
    copies = tp // heads
    return range(head * copies, (head + 1) * copies)

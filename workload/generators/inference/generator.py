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

from nadi.et import TraceTable
from nadi.workload.compute.operators import DTYPE_BYTES
from nadi.workload.generators.inference import ops
from nadi.workload.generators.inference.deployment import Engine, Serving, engines
from nadi.workload.generators.inference.npu_trace import NpuTrace, Transfer, Transfers, member_rows, no_transfers
from nadi.workload.generators.inference.requests import Request, RequestStream, requests_of
from nadi.workload.generators.inference.scheduler import say_nothing
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import ranks
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import chunks
from nadi.workload.trace_sets.trace_set import Families, TraceSet

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
        total += distinct_ranks * (iterations * layers * _NODES_PER_LAYER + 3 * requests)
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
            rank = ranks.place(engine.plan, npu - engine.first)
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
        for name, groups in ranks.families(engine.plan).items():
            shifted = tuple(tuple(npu + engine.first for npu in group) for group in groups)
            families[name] = (*families.get(name, ()), *shifted)
    return families


def _ranks_differ(engine: Engine) -> bool:
    """Return whether GPUs of a tensor-parallel group have different work: other tokens, or other experts."""
    plan, model = engine.plan, engine.model
    if model.experts is None or plan.ep == 1:
        return False
    places = [ranks.place(plan, npu) for npu in range(ranks.stage_size(plan))]
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
        other, place = after if sends else before, ranks.place(engine.plan, npu - engine.first)
        own_routes = [route for route in all_routes if (route.source if sends else route.target) == place.tp]
        pieces = _pieces(serving, engine, other, place.stage)
        other_size = ranks.stage_size(other.plan)

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
        for place, target in enumerate(targets):
            # Spread the decoding ranks that hold the head evenly over the prefill ranks that hold it
            pair = sources[place * len(sources) // len(targets)], target
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

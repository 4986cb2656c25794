"""From a model, plans and requests to the traces of serving."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from et import TraceTable
from workload.generators.inference import experts
from workload.generators.inference.deployment import Engine, Serving, engines
from workload.generators.inference.npu_trace import NpuTrace, Transfer, Transfers, member_rows, no_transfers
from workload.generators.inference.requests import Request, RequestStream, requests_of
from workload.generators.inference.scheduler import say_nothing
from workload.generators.inference.transfer import Route, routes
from workload.generators.training import ranks
from workload.generators.training.stages import chunks
from workload.trace_sets.trace_set import Families, TraceSet

_NODES_OF_A_LAYER = 14
"""At most, without keys and values that are sent."""


def generate(serving: Serving, requests: RequestStream | Path | Iterable[Request]) -> TraceSet:
    """The traces of all NPUs that serve, in memory.

    Args:
        serving: how.
        requests: what is asked: drawn, of a CSV file, or given.

    Raises:
        WorkloadError: the model cannot be served so, or the requests are wrong.
    """
    return traces_of(serving, engines(serving, requests_of(requests)))


def nodes_at_least(serving: Serving, requests: Sequence[Request]) -> int:
    """Nodes that the traces have together, or some fewer: known before anything is scheduled.

    An iteration makes at most one token of each running sequence, with a node for each layer.
    """
    return sum(request.generate - 1 for request in requests) // serving.batch * serving.model.layers


def nodes_at_most(serving: Serving, made: Sequence[Engine]) -> int:
    """Nodes that the distinct traces of some engines have together, or some more."""
    layers, total = serving.model.layers + 4, 0
    moved = sum(len(own) for own in made[0].requests) if len(made) > 1 else 0
    for engine in made:
        iterations = sum(len(own) for own in engine.schedule.iterations)
        ranks_apart = engine.plan.tp if _ranks_differ(engine) else 1
        requests = sum(len(own) for own in engine.requests)
        total += ranks_apart * (iterations * layers * _NODES_OF_A_LAYER + 3 * requests)
        total += moved * layers * engine.plan.tp
    return total


def traces_of(serving: Serving, made: Sequence[Engine], report: Callable[[str], None] = say_nothing) -> TraceSet:
    """Return the traces of engines.

    Args:
        serving: How the model is served.
        made: What `deployment.engines` returned.
        report: Called with a text that says how far the traces are.
    """
    transfers = _transfers(serving, made)
    traces: list[TraceTable] = []
    examples: list[int] = []
    trace_of_npu: list[int] = []
    for engine in made:
        number_of: dict[tuple[object, ...], int] = {}
        apart = _ranks_differ(engine)
        for npu in range(engine.first, engine.first + engine.plan.gpus):
            where = ranks.place(engine.plan, npu - engine.first)
            routed = _relative(transfers(engine, npu), engine, where.dp, npu)
            key = (where.stage, where.dp, where.tp if apart else 0, routed)
            if key not in number_of:
                number_of[key] = len(traces)
                examples.append(npu)
                report(f"trace {len(traces) + 1}, of NPU {npu}")
                traces.append(NpuTrace(engine, npu, transfers(engine, npu)).table())
            trace_of_npu.append(number_of[key])
    used = {name for trace in traces for name in trace.group_names}
    families = {name: groups for name, groups in _families(made).items() if name in used}
    return TraceSet(traces, np.array(trace_of_npu, np.int32), np.array(examples, np.int32), families)


def _families(made: Sequence[Engine]) -> Families:
    """Groups of all engines."""
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for engine in made:
        for name, groups in ranks.families(engine.plan).items():
            shifted = tuple(tuple(npu + engine.first for npu in group) for group in groups)
            found[name] = (*found.get(name, ()), *shifted)
    return found


def _ranks_differ(engine: Engine) -> bool:
    """Whether GPUs of a tensor-parallel group do different things: different tokens, or different experts."""
    plan, model = engine.plan, engine.model
    if model.experts is None or plan.ep == 1:
        return False
    places = [ranks.place(plan, npu) for npu in range(ranks.stage_size(plan))]
    groups = {tuple((each.dp, each.tp) for each in places[at : at + plan.ep]) for at in range(0, len(places), plan.ep)}
    for group in groups:
        for number in range(len(engine.schedule.iterations[group[0][0]])):
            if not experts.flow(plan, model.experts, member_rows(engine, group, number), 0).is_even:
                return True
    return False


def _relative(transfers: Transfers, engine: Engine, replica: int, npu: int) -> tuple[tuple[int, int], ...]:
    """What tells the transfers of two NPUs of a stage apart."""
    moved = (request for request in engine.requests[replica] if transfers(request))
    first = next(moved, None)
    return () if first is None else tuple((each.peer - npu, each.bytes) for each in transfers(first))


def _transfers(serving: Serving, made: Sequence[Engine]) -> Callable[[Engine, int], Transfers]:
    """Of each NPU of an engine, what it sends or receives for a request."""
    if len(made) == 1:
        return lambda _engine, _npu: no_transfers
    before, after = made
    found = routes(serving.model, before.plan, after.plan)
    replica_of = [
        {request.number: replica for replica, own in enumerate(engine.requests) for request in own} for engine in made
    ]

    def of(engine: Engine, npu: int) -> Transfers:
        sends = engine is before
        other, place = after if sends else before, ranks.place(engine.plan, npu - engine.first)
        own_routes = [route for route in found if (route.source if sends else route.target) == place.tp]
        pieces = _pieces(serving, engine, other, place.stage)

        @cache
        def transfers(request: Request) -> tuple[Transfer, ...]:
            replica = replica_of[sends].get(request.number)
            if replica is None:  # it has all its tokens
                return ()
            return tuple(
                Transfer(name, layer, _npu_of(other, stage, replica, route, sends=sends), _size(route, count, request))
                for name, layer, stage, count in pieces
                for route in own_routes
            )

        return transfers

    return of


def _size(route: Route, layers: int, request: Request) -> int:
    return route.token_bytes * layers * request.prompt


def _npu_of(other: Engine, stage: int, replica: int, route: Route, *, sends: bool) -> int:
    tp = route.target if sends else route.source
    return other.first + stage * ranks.stage_size(other.plan) + replica * other.plan.tp + tp


def _pieces(serving: Serving, own: Engine, other: Engine, stage: int) -> list[tuple[str, int, int, int]]:
    """Name, last layer, the other engine's stage, and layers of each message of a stage."""
    model = serving.model
    stage_of = {layer: number for number, (chunk,) in enumerate(chunks(model, other.plan)) for layer in chunk.layers}
    layers = chunks(model, own.plan)[stage][0].layers
    if serving.transfer == "layer":
        return [(f"layer{layer}/", layer, stage_of[layer], 1) for layer in layers]
    of_stage: dict[int, list[int]] = {}
    for layer in layers:
        of_stage.setdefault(stage_of[layer], []).append(layer)
    return [("", max(layers), number, len(have)) for number, have in of_stage.items()]

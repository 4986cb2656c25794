"""A deployment's engines and GPUs, and its clock: the duration of an iteration on a GPU and, if given, a network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from nadi.inputs.units import GIB, PS_PER_US
from nadi.workload.compute.gpu import IN_SERVING, Gpu
from nadi.workload.compute.operators import Operator
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.inference import ops
from nadi.workload.generators.inference.requests import Request
from nadi.workload.generators.inference.scheduler import (
    Batch,
    BatchLimits,
    Clock,
    Role,
    ServingSchedule,
    say_nothing,
    schedule,
)
from nadi.workload.generators.inference.software import CURRENT, ServingSoftware, serving_software
from nadi.workload.generators.memory.estimate import kv_cache_bytes_per_token, serving_estimate
from nadi.workload.generators.models.architecture import Model
from nadi.workload.generators.training import rules, units
from nadi.workload.generators.training.item_lists import Compute, GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.stages import Shard, chunks


class Link(NamedTuple):
    """Times of an engine's communication."""

    collective_ps: Callable[[GroupCollective], float]  # Function that returns the picoseconds of a collective
    message_ps: Callable[[int], float]  # Picoseconds of a message to the next stage, by its bytes


Network = Callable[[ParallelPlan, int], Link]
"""Function that returns the link of an engine with a plan and the number of its first NPU."""
NO_NETWORK = Link(lambda _collective: 0.0, lambda _size: 0.0)  # Link with communication that takes no time


class _Work(NamedTuple):
    """Time and kernels of a part of a pass."""

    ps: float  # Time of its operators and collectives in ps, one after another
    kernels: int  # Number of its operators and collectives


def iteration_clock(
    model: Model, plan: ParallelPlan, gpu: Gpu, software: ServingSoftware, network: Link = NO_NETWORK
) -> Clock:
    """Return a function that computes the microseconds of an iteration through all stages.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
        gpu: The GPU on which the operators run.
        software: The serving software, with the times of its host.
        network: The times of the engine's collectives and messages.
    """
    # All replicas have the same work, and all members of an all-to-all of experts send as much as the first.
    times = ComputeTimes(gpu, pace=IN_SERVING)
    base = Shard(model, plan)

    def work(items: Items, *, is_eager: bool) -> _Work:
        """Return the work of `items` that run sequentially."""
        operators: list[Operator] = [each for item in items if isinstance(item, Compute) for each in item.operators]
        collectives = [item for item in items if isinstance(item, GroupCollective)]
        took_ps = times.sum_ps(operators, is_eager=is_eager) + sum(map(network.collective_ps, collectives))
        return _Work(took_ps, len(operators) + len(collectives))

    @lru_cache(maxsize=1 << 14)
    def mlp(rows: int, tokens: int, layer: int, *, is_eager: bool) -> _Work:
        """Return the work of a layer's MLP or experts, by the number of the `layer`: `tokens` tokens, padded `rows`."""
        shard = ops.shard(base, rows)
        if not model.has_experts(layer):
            return work(ops.mlp_items(shard), is_eager=is_eager)
        routed = tuple(ops.rows_of(plan, tokens, member % plan.tp) for member in range(plan.ep))
        return work(ops.items(shard, layer, routed), is_eager=is_eager)

    @lru_cache(maxsize=1 << 14)
    def microseconds(batch: Batch) -> float:
        """Return the microseconds that a `batch` takes through all stages."""
        rows, is_eager = software.rows(batch), software.is_eager(batch)
        shard = ops.shard(base, rows)
        parts = [(1, work(units.embedding(shard), is_eager=is_eager))]
        parts.append((model.layers, work(ops.attention_items(shard, batch), is_eager=is_eager)))
        for kind in (False, True):
            numbers = [number for number in range(model.layers) if model.has_experts(number) == kind]
            if numbers:
                parts.append((len(numbers), mlp(rows, batch.tokens, numbers[0], is_eager=is_eager)))
        body_ps = sum(count * part.ps for count, part in parts)
        if plan.pp > 1:
            body_ps += (plan.pp - 1) * network.message_ps(rows * model.hidden * shard.value_bytes)
        head_ps = work(ops.head_items(shard, batch, software.logits_kernels), is_eager=is_eager).ps
        launches_us = software.launches_us(batch, sum(count * part.kernels for count, part in parts))
        pass_us = software.waited_us(batch) + max(body_ps / PS_PER_US, launches_us) + head_ps / PS_PER_US
        # Work beside the GPU's previous iteration delays this one as far as it takes longer than an iteration
        return max(pass_us, software.waited_us(batch) + software.beside_us(batch))

    return microseconds


# Deployment of a model for serving: plans, batches and memory, resolved into engines with their iterations.


USED_MEMORY = 0.9  # Share of the GPU's memory that serving uses: the default of vLLM's gpu_memory_utilization
_MAX_BATCH = 1 << 16
_SERVING_FIELDS = ("tp", "pp", "dp", "ep", "etp", "uneven", "capacity", "imbalance", "seed", "dtype")
"""Fields of a plan that serving supports."""
Transfer = Literal["layer", "whole"]


@dataclass(frozen=True)
class Serving:
    """Configuration of serving a model."""

    model: Model  # Model to serve
    plan: ParallelPlan  # Parallel plan of all GPUs or, with `prefill_plan`, of the decoding GPUs
    batch: int = 1  # Maximum number of sequences that a replica runs at a time
    # Number of tokens per iteration with chunked prefill; 0 = prompts run unsplit and before decoding; None = that of
    # the software, at least one for each sequence
    chunk: int | None = None
    # Maximum tokens of unsplit prompts per iteration; a longer one runs alone; None = that of the software
    prompt_tokens: int | None = None
    gpu: Gpu | None = None  # GPU of the clock, whose memory limits the cache; None = the clock counts iterations
    network: Network | None = None  # Communication times of the clock; None = communication takes no time
    kv_tokens: int = 0  # Capacity of a replica's KV cache in tokens; 0 = the free memory of the GPU
    prefill_plan: ParallelPlan | None = None  # Plan of separate GPUs for prompts, numbered first; None = the same GPUs
    transfer: Transfer = "layer"  # When keys and values move to decoding GPUs: after each layer or the pass
    software: str = CURRENT  # Serving software, as `serving_software` takes it

    def __post_init__(self) -> None:
        """Raise WorkloadError where a number of the deployment is out of its range."""
        if not 1 <= self.batch <= _MAX_BATCH:
            raise WorkloadError(f"batch: {self.batch}, expected 1 to {_MAX_BATCH}")
        if self.chunk and self.chunk < self.batch:
            raise WorkloadError(f"chunk: {self.chunk} tokens, expected at least one for each of batch ({self.batch})")
        if self.pass_tokens < 0 or self.whole_tokens < 1 or self.kv_tokens < 0:
            raise WorkloadError(
                "chunk, prompt_tokens and kv_tokens: expected no negative number of tokens, prompt_tokens 1"
            )

    @property
    def host(self) -> ServingSoftware:
        """The serving software. Raises WorkloadError: it is unknown."""
        return serving_software(self.software)

    @property
    def pass_tokens(self) -> int:
        """Number of tokens per iteration with chunked prefill; 0 = prompts run unsplit."""
        if self.chunk is not None:
            return self.chunk
        return max(self.host.chunk, self.batch) if self.host.chunk else 0

    @property
    def whole_tokens(self) -> int:
        """Maximum tokens of unsplit prompts per iteration."""
        return self.host.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens


class Engine(NamedTuple):
    """The GPUs of one plan, with their requests and the schedule of their iterations."""

    model: Model  # Model to serve
    plan: ParallelPlan  # Settled parallel plan
    first: int  # Number of the first NPU
    role: Role  # Phases that the engine runs: prompts, decoding or both
    requests: tuple[tuple[Request, ...], ...]  # Requests of each replica
    schedule: ServingSchedule  # Iterations of each replica
    software: ServingSoftware  # Serving software
    ready_us: dict[int, int]  # Microsecond when the scheduler has a request, by request number


def engines(
    serving: Serving, requests: Sequence[Request], report: Callable[[str], None] = say_nothing
) -> tuple[Engine, ...]:
    """Return the engines of a deployment with their schedules: one, or one each for prefill and decoding.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        requests: The requests in the order of arrival.
        report: A function that is called with texts about the progress.
    """
    _check(serving, requests)
    plan = settle(serving.model, serving.plan)
    if serving.prefill_plan is None:
        return (_engine(serving, plan, 0, Role(), requests, report),)
    prefill_plan = settle(serving.model, serving.prefill_plan)
    prefill = _engine(serving, prefill_plan, 0, Role(decodes=False), requests, report)
    ready = prefill.schedule.prompted_us
    to_decode = sorted((r for r in requests if r.generate > 1), key=lambda r: (ready[r.number], r.number))
    if not to_decode:
        raise WorkloadError("a prefill plan, but no request makes more than one token, expected some that do")
    moved = [request._replace(arrival_us=round(ready[request.number])) for request in to_decode]
    return prefill, _engine(serving, plan, prefill_plan.gpus, Role(prefills=False), moved, report)


def settle(model: Model, plan: ParallelPlan) -> ParallelPlan:
    """Return the settled plan for serving; without expert parallelism, experts are split like other matrices.

    Args:
        model: The architecture of the model.
        plan: The parallel plan: numbers of GPUs along each axis, batch sizes and options.
    """
    if model.experts is not None and plan.ep == 1 and plan.etp == 1:
        plan = plan.model_copy(update={"etp": plan.tp})
    rules.check(model, plan, "inference")
    plan = rules.settle(model, plan, "inference").model_copy(update={"global_batch": 0, "sequence": 0})
    prefix = f"model {model.name}, plan {plan}: "
    for key in ParallelPlan.model_fields:
        if key not in (*_SERVING_FIELDS, "schedule") and getattr(plan, key) != ParallelPlan.model_fields[key].default:
            raise WorkloadError(f"{prefix}{key} is {getattr(plan, key)}, which serving does not know; it knows "
                                f"{', '.join(_SERVING_FIELDS)}")  # fmt: skip
    if plan.etp not in {1, plan.tp} or (plan.ep > 1 and plan.etp > 1):
        raise WorkloadError(f"{prefix}etp is {plan.etp}, expected 1 with ep, or tp ({plan.tp}) without")
    return plan


def _check(serving: Serving, requests: Sequence[Request]) -> None:
    """Check that a configuration can serve the requests; WorkloadError if not."""
    model = serving.model
    if serving.gpu is None and any(request.arrival_us for request in requests):
        raise WorkloadError("requests arrive at different times, expected a cluster or gpu as clock")
    if serving.gpu is None and serving.prefill_plan is not None:
        raise WorkloadError("a prefill plan without a clock, expected a cluster or gpu")
    prefill_plan = serving.prefill_plan
    if prefill_plan is not None and prefill_plan.dtype != serving.plan.dtype:
        raise WorkloadError(
            f"prefill plan: dtype is {prefill_plan.dtype}, expected that of the other plan ({serving.plan.dtype})"
        )
    longest = max(requests, key=lambda request: request.prompt + request.generate)
    tokens = longest.prompt + longest.generate
    if model.positions == "learned" and tokens > model.sequence:
        raise WorkloadError(
            f"request {longest.number} has {tokens} tokens, expected {model.sequence} at most, as {model.name} learns "
            "its positions"
        )


def _engine(
    serving: Serving,
    plan: ParallelPlan,
    first_npu: int,
    role: Role,
    requests: Sequence[Request],
    report: Callable[[str], None],
) -> Engine:
    """Return the engine of a plan on NPUs from first_npu on, with the schedule of its requests in a role."""
    of_replica = tuple(tuple(requests[number :: plan.dp]) for number in range(plan.dp))
    request_us = serving.host.request_us if role.prefills and serving.gpu is not None else 0
    ready_us = {number: at for own in of_replica for number, at in _ready_us(own, request_us).items()}
    waiting = [[each._replace(arrival_us=ready_us[each.number]) for each in own] for own in of_replica]
    # One batch in flight per pipeline stage keeps all stages busy; each lane has an equal part of the cache
    lanes = min(plan.pp, serving.batch)
    limits = BatchLimits(
        sequences=-(-serving.batch // lanes),
        cached_tokens=cache_tokens(serving, plan, requests) // lanes,
        prompt_tokens=serving.whole_tokens,
        chunk=serving.pass_tokens,
        lanes=lanes,
        stages=plan.pp,
    )
    _refuse_too_long(serving, requests, limits, role)
    clock: Clock = lambda _batch: 1.0  # noqa: E731 - one of two functions
    if serving.gpu is not None:
        link = NO_NETWORK if serving.network is None else serving.network(plan, first_npu)
        clock = iteration_clock(serving.model, plan, serving.gpu, serving.host, link)
    if plan.ep > 1 and plan.tp % plan.ep:  # replicas that share experts run their iterations in lockstep
        iterations = schedule(waiting, limits, role, clock, report)
    else:
        schedules = [schedule([own], limits, role, clock, report) for own in waiting]
        ready = {number: at for each in schedules for number, at in each.prompted_us.items()}
        iterations = ServingSchedule(tuple(each.iterations[0] for each in schedules), ready)
    return Engine(serving.model, plan, first_npu, role, of_replica, iterations, serving.host, ready_us)


def _ready_us(requests: Sequence[Request], request_us: int) -> dict[int, int]:
    """Return the microsecond when a replica's front end, one request at a time, is done with each, by its number."""
    ready_us, free_us = {}, 0
    for request in requests:  # in the order of arrival
        free_us = max(free_us, request.arrival_us) + request_us
        ready_us[request.number] = free_us
    return ready_us


def cache_tokens(serving: Serving, plan: ParallelPlan, requests: Sequence[Request]) -> int:
    """Return the capacity of a replica's KV cache in tokens; 0 = no limit is known.

    Args:
        serving: The configuration of serving: model, plans, limits of batches, and clock.
        plan: The settled parallel plan of the engine.
        requests: The requests that the engine serves.
    """
    if serving.kv_tokens or serving.gpu is None:
        return serving.kv_tokens
    longest = max((request.prompt for request in requests), default=1)
    in_pass = max(serving.pass_tokens or max(serving.whole_tokens, longest), serving.batch)
    in_pass = min(in_pass, serving.batch * longest)  # all prompts of a batch together
    memory = USED_MEMORY * serving.gpu.memory_bytes
    capacities: list[int] = []
    for stage, estimate in enumerate(serving_estimate(serving.model, plan, in_pass)):
        layers = len(chunks(serving.model, plan)[stage][0].layers)
        if not layers:
            continue
        free = int(memory - estimate.total)
        if free <= 0:
            raise WorkloadError(
                f"model {serving.model.name}, plan {plan}: a GPU of stage {stage} needs {estimate.total / GIB:,.1f} "
                f"GiB without a cache, expected less than {memory / GIB:,.1f} GiB "
                f"({USED_MEMORY:.0%} of {serving.gpu.name})"
            )
        # The stage with the smallest room limits the tokens, as each stage caches its layers of every token
        free = min(free, serving.gpu.memory_bytes * serving.host.cache_percent // 100)
        capacities.append(free // kv_cache_bytes_per_token(serving.model, plan, layers))
    return min(capacities)


def _refuse_too_long(serving: Serving, requests: Sequence[Request], limits: BatchLimits, role: Role) -> None:
    """Raise WorkloadError if a request needs more of the KV cache than a batch may have."""
    if not limits.cached_tokens and not (serving.kv_tokens or serving.gpu):
        return
    for request in requests:
        tokens = request.prompt + (request.generate if role.decodes else 0)
        if tokens > limits.cached_tokens:
            raise WorkloadError(
                f"request {request.number} has {tokens} tokens, expected {limits.cached_tokens} at most, which the "
                "KV cache has room for" + (f" in each of {limits.lanes} batches in flight" if limits.lanes > 1 else "")
            )

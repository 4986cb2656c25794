"""How a model is served: plans, batches, memory; settled into engines with their iterations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from inputs.units import GIB
from workload.compute.gpu import Gpu
from workload.errors import WorkloadError
from workload.generators.inference.clock import NO_NETWORK, Network, iteration_clock
from workload.generators.inference.requests import Request
from workload.generators.inference.scheduler import BatchLimits, Clock, Role, ServingSchedule, say_nothing, schedule
from workload.generators.memory.serving import kv_cache_bytes_per_token, serving_estimate
from workload.generators.models.model import Model
from workload.generators.training import rules
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.stages import chunks

PROMPT_TOKENS = 8192
"""Of whole prompts in an iteration, unless said."""
USED_MEMORY = 0.9
"""Share of the GPU's memory that is used, vLLM's gpu_memory_utilization."""
_MOST_BATCH = 1 << 16
_SERVES = ("tp", "pp", "dp", "ep", "etp", "uneven", "capacity", "imbalance", "seed", "dtype")
"""Keys of a plan that serving knows."""
Transfer = Literal["layer", "whole"]


@dataclass(frozen=True)
class Serving:
    """How a model is served.

    Attributes:
        model: which.
        plan: of the GPUs, or of those that decode where `prefill_plan` is given.
        batch: sequences that a replica runs at a time.
        chunk: tokens of an iteration with chunked prefill, 0 = prompts go whole, and first.
        prompt_tokens: of whole prompts in an iteration; a longer prompt goes alone.
        gpu: whose operator times are the scheduler's clock and whose memory bounds the cache; None = no clock but the
            number of iterations, and no bound.
        network: how long communication takes, for the same clock; None = it takes no time there.
        kv_tokens: that a replica's cache holds; 0 = what the GPU's memory leaves.
        prefill_plan: of other GPUs that do the prompts; their numbers come before those that decode.
        transfer: keys and values go to the decoding GPUs layer by layer, or all after the pass.
    """

    model: Model
    plan: ParallelPlan
    batch: int = 1
    chunk: int = 0
    prompt_tokens: int = PROMPT_TOKENS
    gpu: Gpu | None = None
    network: Network | None = None
    kv_tokens: int = 0
    prefill_plan: ParallelPlan | None = None
    transfer: Transfer = "layer"

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= _MOST_BATCH:
            raise WorkloadError(f"batch: {self.batch}, expected 1 to {_MOST_BATCH}")
        if self.chunk and self.chunk < self.batch:
            raise WorkloadError(f"chunk: {self.chunk} tokens, expected at least one for each of batch ({self.batch})")
        if self.chunk < 0 or self.prompt_tokens < 1 or self.kv_tokens < 0:
            raise WorkloadError(
                "chunk, prompt_tokens and kv_tokens: expected no negative number of tokens, prompt_tokens 1"
            )


class Engine(NamedTuple):
    """GPUs of one plan and what they do.

    Attributes:
        model: that is served.
        plan: settled.
        first: its first NPU.
        role: prompts, decoding or both.
        requests: of each replica.
        schedule: iterations of each replica.
    """

    model: Model
    plan: ParallelPlan
    first: int
    role: Role
    requests: tuple[tuple[Request, ...], ...]
    schedule: ServingSchedule


def engines(
    serving: Serving, requests: Sequence[Request], report: Callable[[str], None] = say_nothing
) -> tuple[Engine, ...]:
    """Return the engines with their schedules: one, or one for prompts and one that decodes.

    Args:
        serving: How the model is served.
        requests: What is asked.
        report: Called with a text that says how far the schedule is.

    Raises:
        WorkloadError: the model cannot be served so.
    """
    _check(serving, requests)
    plan = settle(serving.model, serving.plan)
    if serving.prefill_plan is None:
        return (_engine(serving, plan, 0, Role(), requests, report),)
    before = settle(serving.model, serving.prefill_plan)
    prompting = _engine(serving, before, 0, Role(decodes=False), requests, report)
    ready = prompting.schedule.prompted_us
    coming = sorted(
        (request for request in requests if request.generate > 1), key=lambda r: (ready[r.number], r.number)
    )
    if not coming:
        raise WorkloadError("a prefill plan, but no request makes more than one token, expected some that do")
    moved = [request._replace(arrival_us=round(ready[request.number])) for request in coming]
    return prompting, _engine(serving, plan, before.gpus, Role(prefills=False), moved, report)


def settle(model: Model, plan: ParallelPlan) -> ParallelPlan:
    """The plan as it serves: without expert parallelism experts are split like other matrices.

    Raises:
        WorkloadError: the model cannot be served so.
    """
    if model.experts is not None and plan.ep == 1 and plan.etp == 1:
        plan = plan.model_copy(update={"etp": plan.tp})
    rules.check(model, plan, "inference")
    plan = rules.settle(model, plan, "inference").model_copy(update={"global_batch": 0, "sequence": 0})
    said = f"model {model.name}, plan {plan}: "
    for key in ParallelPlan.model_fields:
        if key not in (*_SERVES, "schedule") and getattr(plan, key) != ParallelPlan.model_fields[key].default:
            raise WorkloadError(f"{said}{key} is {getattr(plan, key)}, which serving does not know; it knows "
                                f"{', '.join(_SERVES)}")  # fmt: skip
    if plan.etp not in {1, plan.tp} or (plan.ep > 1 and plan.etp > 1):
        raise WorkloadError(f"{said}etp is {plan.etp}, expected 1 with ep, or tp ({plan.tp}) without")
    return plan


def is_coupled(plan: ParallelPlan) -> bool:
    """Whether replicas share experts, and so keep step."""
    return plan.ep > 1 and plan.tp % plan.ep != 0


def _check(serving: Serving, requests: Sequence[Request]) -> None:
    model = serving.model
    if serving.gpu is None and any(request.arrival_us for request in requests):
        raise WorkloadError("requests arrive at different times, expected a cluster or gpu as clock")
    if serving.gpu is None and serving.prefill_plan is not None:
        raise WorkloadError("a prefill plan without a clock, expected a cluster or gpu")
    before = serving.prefill_plan
    if before is not None and before.dtype != serving.plan.dtype:
        raise WorkloadError(
            f"prefill plan: dtype is {before.dtype}, expected that of the other plan ({serving.plan.dtype})"
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
    first: int,
    role: Role,
    requests: Sequence[Request],
    report: Callable[[str], None],
) -> Engine:
    of_replica = tuple(tuple(requests[number :: plan.dp]) for number in range(plan.dp))
    lanes = min(plan.pp, serving.batch)
    limits = BatchLimits(
        sequences=-(-serving.batch // lanes),
        cached_tokens=cache_tokens(serving, plan, requests) // lanes,
        prompt_tokens=serving.prompt_tokens,
        chunk=serving.chunk,
        lanes=lanes,
        stages=plan.pp,
    )
    _refuse_too_long(serving, requests, limits, role)
    clock: Clock = lambda _batch: 1.0  # noqa: E731 - the other one is made
    if serving.gpu is not None:
        link = NO_NETWORK if serving.network is None else serving.network(plan, first)
        clock = iteration_clock(serving.model, plan, serving.gpu, link)
    if is_coupled(plan):
        made = schedule(of_replica, limits, role, clock, report)
    else:
        alone = [schedule([own], limits, role, clock, report) for own in of_replica]
        ready = {number: at for each in alone for number, at in each.prompted_us.items()}
        made = ServingSchedule(tuple(each.iterations[0] for each in alone), ready)
    return Engine(serving.model, plan, first, role, of_replica, made)


def cache_tokens(serving: Serving, plan: ParallelPlan, requests: Sequence[Request]) -> int:
    """Tokens that the cache of a replica holds, 0 = no limit is known.

    Raises:
        WorkloadError: the weights leave no memory.
    """
    if serving.kv_tokens or serving.gpu is None:
        return serving.kv_tokens
    longest = max((request.prompt for request in requests), default=1)
    in_pass = max(serving.chunk or max(serving.prompt_tokens, longest), serving.batch)
    memory = USED_MEMORY * serving.gpu.memory_bytes
    found: list[int] = []
    for stage, estimate in enumerate(serving_estimate(serving.model, plan, 0, in_pass)):
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
        found.append(free // kv_cache_bytes_per_token(serving.model, plan, layers))
    return min(found)


def _refuse_too_long(serving: Serving, requests: Sequence[Request], limits: BatchLimits, role: Role) -> None:
    if not limits.cached_tokens and not (serving.kv_tokens or serving.gpu):
        return
    for request in requests:
        tokens = request.prompt + (request.generate if role.decodes else 0)
        if tokens > limits.cached_tokens:
            raise WorkloadError(
                f"request {request.number} has {tokens} tokens, expected {limits.cached_tokens} at most, which the "
                "KV cache has room for" + (f" in each of {limits.lanes} batches in flight" if limits.lanes > 1 else "")
            )

"""The scheduler's clock: how long an iteration's operators take on a GPU, without communication."""

from functools import lru_cache

from workload.compute.gpu import Gpu
from workload.compute.operators import Operator
from workload.compute.times import ComputeTimes
from workload.inference import experts, layers
from workload.inference.batch import Batch
from workload.inference.scheduler import Clock
from workload.models.model import Model
from workload.training.items import Compute, Items
from workload.training.parallel_plan import ParallelPlan
from workload.training.shard import Shard

_PS_PER_US = 1e6


def iteration_clock(model: Model, plan: ParallelPlan, gpu: Gpu) -> Clock:
    """Microseconds of an iteration through all stages, of a GPU whose replicas all do the same."""
    times = ComputeTimes(gpu)
    base = Shard(model, plan)

    def of(items: Items) -> int:
        operators: list[Operator] = [each for item in items if isinstance(item, Compute) for each in item.operators]
        return sum(times.time_ps(operator) for operator in operators)

    @lru_cache(maxsize=1 << 14)
    def mlp_ps(tokens: int, layer: int) -> int:
        s = layers.shard(base, tokens)
        if not model.has_experts(layer):
            return of(layers.mlp_items(s))
        rows = tuple(experts.rows_of(plan, tokens, member % plan.tp) for member in range(plan.ep))
        return of(experts.items(s, layer, rows))

    @lru_cache(maxsize=1 << 14)
    def microseconds(batch: Batch) -> float:
        s = layers.shard(base, batch.tokens)
        total = model.layers * of(layers.attention_items(s, batch))
        kinds = [next((n for n in range(model.layers) if model.has_experts(n) == kind), 0) for kind in (False, True)]
        count = sum(model.has_experts(number) for number in range(model.layers))
        total += (model.layers - count) * mlp_ps(batch.tokens, kinds[0]) if count < model.layers else 0
        total += count * mlp_ps(batch.tokens, kinds[1]) if count else 0
        return (total + of(layers.embedding_items(s)) + of(layers.head_items(s, batch))) / _PS_PER_US

    return microseconds

"""The scheduler's clock: how long an iteration takes, by its operators on a GPU, and by a network if one is given."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from inputs.units import PS_PER_US
from workload.compute.efficiency import IN_SERVING
from workload.compute.gpu import Gpu
from workload.compute.operators import Operator
from workload.compute.times import ComputeTimes
from workload.generators.inference import experts, layers
from workload.generators.inference.batch import Batch
from workload.generators.inference.scheduler import Clock
from workload.generators.models.model import Model
from workload.generators.training.items import Compute, GroupCollective, Items
from workload.generators.training.parallel_plan import ParallelPlan
from workload.generators.training.shard import Shard


class Link(NamedTuple):
    """What communication of an engine takes.

    Attributes:
        collective_ps: picoseconds of a collective of a GPU's group.
        message_ps: picoseconds of a message of so many bytes to the next stage.
    """

    collective_ps: Callable[[GroupCollective], float]
    message_ps: Callable[[int], float]


Network = Callable[[ParallelPlan, int], Link]
"""Of an engine with a plan, whose first NPU is given."""
NO_NETWORK = Link(lambda _collective: 0.0, lambda _size: 0.0)


def iteration_clock(model: Model, plan: ParallelPlan, gpu: Gpu, link: Link = NO_NETWORK) -> Clock:
    """Microseconds of an iteration through all stages, of a GPU whose replicas all do the same.

    Experts' all-to-alls count as if all members sent as much as the first.
    """
    times = ComputeTimes(gpu, pace=IN_SERVING)
    base = Shard(model, plan)

    def of(items: Items) -> float:
        operators: list[Operator] = [each for item in items if isinstance(item, Compute) for each in item.operators]
        return sum(times.time_ps(operator) for operator in operators) + sum(
            link.collective_ps(item) for item in items if isinstance(item, GroupCollective)
        )

    @lru_cache(maxsize=1 << 14)
    def mlp_ps(tokens: int, layer: int) -> float:
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
        if plan.pp > 1:
            total += (plan.pp - 1) * link.message_ps(batch.tokens * model.hidden * s.value_bytes)
        return (total + of(layers.embedding_items(s)) + of(layers.head_items(s, batch))) / PS_PER_US

    return microseconds

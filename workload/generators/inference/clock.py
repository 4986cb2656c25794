"""The scheduler's clock: the duration of an iteration from its operators on a GPU and, if given, a network."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from nadi.inputs.units import PS_PER_US
from nadi.workload.compute.efficiency import IN_SERVING
from nadi.workload.compute.gpu import Gpu
from nadi.workload.compute.operators import Operator
from nadi.workload.compute.times import ComputeTimes
from nadi.workload.generators.inference import experts, layers
from nadi.workload.generators.inference.scheduler import Batch, Clock
from nadi.workload.generators.models.model import Model
from nadi.workload.generators.training import mlp, vocabulary
from nadi.workload.generators.training.items import Compute, GroupCollective, Items
from nadi.workload.generators.training.parallel_plan import ParallelPlan
from nadi.workload.generators.training.shard import Shard


class Link(NamedTuple):
    """Times of an engine's communication."""

    collective_ps: Callable[[GroupCollective], float]  # Function that returns the picoseconds of a collective
    message_ps: Callable[[int], float]  # Picoseconds of a message to the next stage, by its bytes


Network = Callable[[ParallelPlan, int], Link]
"""Function that returns the link of an engine with a plan and the number of its first NPU."""
NO_NETWORK = Link(lambda _collective: 0.0, lambda _size: 0.0)  # Link with communication that takes no time


def iteration_clock(model: Model, plan: ParallelPlan, gpu: Gpu, network: Link = NO_NETWORK) -> Clock:
    """Return a function that computes the microseconds of an iteration through all stages; network: its times."""
    # All replicas have the same work, and all members of an all-to-all of experts send as much as the first.
    times = ComputeTimes(gpu, pace=IN_SERVING)
    base = Shard(model, plan)

    def time_ps(items: Items) -> float:
        """Return the ps of items that run one after another: operators and collectives."""
        operators: list[Operator] = [each for item in items if isinstance(item, Compute) for each in item.operators]
        return sum(times.time_ps(operator) for operator in operators) + sum(
            network.collective_ps(item) for item in items if isinstance(item, GroupCollective)
        )

    @lru_cache(maxsize=1 << 14)
    def mlp_ps(tokens: int, layer: int) -> float:
        """Return the ps of a layer's MLP or experts, by the layer's number, for `tokens` tokens."""
        shard = layers.shard(base, tokens)
        if not model.has_experts(layer):
            return time_ps(mlp.forward(shard))
        rows = tuple(experts.rows_of(plan, tokens, member % plan.tp) for member in range(plan.ep))
        return time_ps(experts.items(shard, layer, rows))

    @lru_cache(maxsize=1 << 14)
    def microseconds(batch: Batch) -> float:
        """Return the microseconds that a batch takes through all stages."""
        shard = layers.shard(base, batch.tokens)
        total = model.layers * time_ps(layers.attention_items(shard, batch))
        for kind in (False, True):
            numbers = [number for number in range(model.layers) if model.has_experts(number) == kind]
            total += len(numbers) * mlp_ps(batch.tokens, numbers[0]) if numbers else 0
        if plan.pp > 1:
            total += (plan.pp - 1) * network.message_ps(batch.tokens * model.hidden * shard.value_bytes)
        return (total + time_ps(vocabulary.embedding(shard)) + time_ps(layers.head_items(shard, batch))) / PS_PER_US

    return microseconds

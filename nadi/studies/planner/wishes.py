"""From what the user writes to questions: one, or one for each value of a sweep."""

from dataclasses import replace
from typing import get_args

from nadi.configuration.bounds import MAX_GPUS
from nadi.errors import ConfigError
from nadi.studies.planner.planning import PlanRequest
from topologies import clusters
from workload.generators import models
from workload.generators.training import parallel_plan, rules


def wish_of(model: str, cluster: str, gpus: int, base: str, framework: str, gpu: str) -> PlanRequest:
    """The question.

    Raises:
        WorkloadError, TopologyError, ConfigError: a name is not known.
    """
    if framework not in get_args(rules.Framework) or framework == "inference":
        raise ConfigError(f"--framework {framework}: expected megatron, deepspeed or fsdp")
    known: rules.Framework = framework  # type: ignore[assignment]
    return PlanRequest(models.find(model), clusters.find(cluster), gpus, parallel_plan(base), known, gpu)


def swept(wish: PlanRequest, sweep: str) -> dict[str, PlanRequest]:
    """A question for each value of a sweep by its name, or the one as it is under the model's name.

    Raises:
        ConfigError: no key, or no value.
    """
    if not sweep:
        return {wish.model.name: wish}
    key, _, text = (part.strip() for part in sweep.partition("="))
    values = [value.strip() for value in text.split(",")]
    if not key or not all(values):
        raise ConfigError(f"--sweep {sweep!r}: expected KEY=VALUE,VALUE,... as rate=200Gbps,400Gbps")
    return {f"{key}={value}": _with(wish, key, value) for value in values}


def _with(wish: PlanRequest, key: str, value: str) -> PlanRequest:
    if key == "gpus":
        if not value.isdecimal() or len(value) > 9 or int(value) > MAX_GPUS:
            raise ConfigError(f"--sweep gpus: found {value!r}; expected whole numbers up to {MAX_GPUS}")
        return replace(wish, gpus=int(value))
    if key == "gpu":
        return replace(wish, gpu=value)
    return replace(wish, fabric={**wish.fabric, key: value})

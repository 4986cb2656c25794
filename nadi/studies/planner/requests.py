"""Plan requests from command-line options: one request, or one for each value of a sweep."""

from dataclasses import replace
from typing import get_args

from nadi.configuration.bounds import MAX_GPUS
from nadi.errors import ConfigError
from nadi.studies.planner.planning import PlanRequest
from topologies import clusters
from workload.generators import models
from workload.generators.training import parallel_plan, rules


def plan_request(model: str, cluster: str, num_gpus: int, plan_option: str, framework: str, gpu: str) -> PlanRequest:
    """Return the request of named model, cluster, framework and `gpu` ("" = the cluster's) with values of --plan."""
    if framework not in get_args(rules.Framework) or framework == "inference":
        raise ConfigError(f"--framework {framework}: expected megatron, deepspeed or fsdp")
    known: rules.Framework = framework  # type: ignore[assignment]
    return PlanRequest(models.find(model), clusters.find(cluster), num_gpus, parallel_plan(plan_option), known, gpu)


def sweep_requests(request: PlanRequest, sweep_option: str) -> dict[str, PlanRequest]:
    """Return a request for each value of KEY=VALUE,VALUE by name, or one by model name; ConfigError if it is wrong."""
    if not sweep_option:
        return {request.model.name: request}
    key, _, text = (part.strip() for part in sweep_option.partition("="))
    values = [value.strip() for value in text.split(",")]
    if not key or not all(values):
        raise ConfigError(f"--sweep {sweep_option!r}: expected KEY=VALUE,VALUE,... as rate=200Gbps,400Gbps")
    return {f"{key}={value}": _with(request, key, value) for value in values}


def _with(request: PlanRequest, key: str, value: str) -> PlanRequest:
    """Return the request with one key changed: gpus, gpu, or a parameter of the cluster's topology."""
    if key == "gpus":
        if not value.isdecimal() or len(value) > 9 or int(value) > MAX_GPUS:
            raise ConfigError(f"--sweep gpus: found {value!r}; expected whole numbers up to {MAX_GPUS}")
        return replace(request, gpus=int(value))
    if key == "gpu":
        return replace(request, gpu=value)
    return replace(request, fabric={**request.fabric, key: value})

"""Runs that name a model and a parallel plan in place of traces.

What makes traces is imported where a run names a model: a run of traces needs none of it, and starts sooner.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError
from topologies.clusters import find as find_cluster
from workload.compute import find_gpu, gpu_names
from workload.trace_sets.own import ELSEWHERE, IDLE
from workload.trace_sets.trace_set import TraceSet

if TYPE_CHECKING:
    from nadi.configuration.sections import RunConfig
    from workload.generators.inference import Request, Serving
    from workload.generators.models import Model
    from workload.generators.training import ParallelPlan


def settled(config: "RunConfig") -> "RunConfig":
    """The configuration with plan and GPU settled, and of a cluster as many GPUs as the plan has.

    Args:
        config: of a run file, its paths from the current folder; unless it names a model, it stays as it is.

    Raises:
        WorkloadError: the model is not known, or cannot be trained by the plan.
        TopologyError: the cluster has no fabric of so many GPUs.
        ConfigError: nothing says how long its operators take.
    """
    workload = config.workload
    if workload.model is None or workload.plan is None:
        return config
    from workload.generators.models import find
    from workload.generators.training import rules

    model, plan = find(workload.model), workload.plan
    if workload.framework == "inference":
        from workload.generators.inference.deployment import settle

        plan = settle(model, plan)
    else:
        rules.check(model, plan, workload.framework)
        plan = rules.settle(model, plan, workload.framework)
    workload = workload.model_copy(update={"plan": plan})
    topology = config.topology
    if topology.cluster is not None and topology.gpus is None:
        find_cluster(topology.cluster).topology(plan.gpus)
        topology = topology.model_copy(update={"gpus": plan.gpus})
    if config.compute.gpu is None and config.compute.peak_flops is None:
        known = ", ".join(gpu_names())
        raise ConfigError(f"[compute] gpu: missing beside [workload] model; expected one of {known}, or a TOML file")
    return config.model_copy(update={"workload": workload, "topology": topology})


def model_and_plan(config: "RunConfig") -> "tuple[Model, ParallelPlan] | None":
    """Of a settled configuration's training; None where it names traces, or a model that is served."""
    workload = config.workload
    if workload.model is None or workload.plan is None or workload.framework == "inference":
        return None
    from workload.generators.models import find

    return find(workload.model), workload.plan


def serving_and_requests(config: "RunConfig") -> "tuple[Serving, tuple[Request, ...]] | None":
    """Of a settled configuration, how a model is served and what is asked; None where none is served.

    Raises:
        WorkloadError: numbers that do not fit together.
    """
    workload = config.workload
    if workload.model is None or workload.plan is None or workload.framework != "inference":
        return None
    from nadi.configuration.sections import ServingSection
    from workload.generators.inference import Lengths, RequestStream, Serving, requests_of
    from workload.generators.models import find

    asked, gpu = config.serving or ServingSection(), config.compute.gpu
    serving = Serving(
        model=find(workload.model),
        plan=workload.plan,
        batch=asked.batch,
        chunk=asked.chunk,
        prompt_tokens=asked.prompt_tokens,
        gpu=None if gpu is None else find_gpu(gpu),
        kv_tokens=asked.kv_tokens,
    )
    count = asked.requests or asked.batch * serving.plan.dp
    prompt, answer = Lengths.parse(asked.prompt, "prompt"), Lengths.parse(asked.generate, "generate")
    return serving, requests_of(RequestStream(count, prompt, answer, seed=asked.seed))


def remarks(config: "RunConfig", npus: int | None = None) -> list[str]:
    """What is to be known of the model's run: GPUs of whose memory it takes more than there is, and idle NPUs.

    Args:
        config: settled.
        npus: of the fabric; None = not known yet.
    """
    found = model_and_plan(config)
    if found is None:
        return []
    from workload.generators.memory import does_not_fit

    said = []
    gpu = config.compute.gpu
    if gpu is not None:
        said = [does_not_fit(*found, find_gpu(gpu).memory_bytes, config.workload.framework)]
    plan = found[1]
    if npus is not None and plan.gpus < npus:
        said.append(f"{npus - plan.gpus:,} of {npus:,} NPUs have nothing to do: the plan is of {plan.gpus:,} GPUs")
    return [text for text in said if text]


def trace_set(config: "RunConfig", npus: int, own: NDArray[np.bool_] | None) -> TraceSet:
    """The traces of the configuration's model and plan.

    Args:
        config: Settled configuration with a model and a plan.
        npus: Number of NPUs of the fabric; those beyond the plan's GPUs stay idle.
        own: bool[npus], NPUs of this rank; None = all.

    Raises:
        ConfigError: the fabric has fewer NPUs than the plan.
    """
    from workload.generators.models import find
    from workload.generators.training.generator import generate

    plan = cast("ParallelPlan", config.workload.plan)  # WorkloadSection refuses a model without one
    if plan.gpus > npus:
        replicas = npus * plan.dp // plan.gpus
        smaller = f"dp{replicas} ({replicas * plan.gpus // plan.dp} GPUs), or " if replicas else ""
        raise ConfigError(
            f"[workload] plan: {plan} is of {plan.gpus} GPUs, the fabric has {npus} NPUs; expected {smaller}"
            f"a fabric of {plan.gpus}"
        )
    served = serving_and_requests(config)
    if served is not None:
        from workload.generators.inference import generate as serve

        made = serve(*served)
    else:
        made = generate(find(config.workload.model or ""), plan, config.workload.framework)
    trace_of_npu = np.full(npus, IDLE, np.int32)
    trace_of_npu[: plan.gpus] = made.trace_of_npu
    if own is not None:
        trace_of_npu[~own] = ELSEWHERE
    return replace(made, trace_of_npu=trace_of_npu)

"""Runs that name a model and a parallel plan instead of traces.

Functions import the trace generators on use, because a run of traces does not need them and starts faster without.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.topologies.clusters import find as find_cluster
from nadi.workload.compute import find_gpu, gpu_names, nvidia
from nadi.workload.trace_sets.trace_set import ELSEWHERE, IDLE, TraceSet

if TYPE_CHECKING:
    from nadi.configuration.jobs import JobSection
    from nadi.configuration.sections import RunConfig
    from nadi.workload.generators.inference import Request, Serving
    from nadi.workload.generators.models import Model
    from nadi.workload.generators.training import ParallelPlan


class Training(NamedTuple):
    """Training of a model that a run simulates."""

    model: "Model"
    plan: "ParallelPlan"
    peak_flops: float | None  # floating-point operations per second of a GPU in the plan's type; None = not known
    iterations: int  # number of times that the run does the plan's steps


def settled(config: "RunConfig") -> "RunConfig":
    """Return the configuration with plan and GPU settled, and with as many GPUs of its cluster as the plan has.

    Without a model it stays unchanged. Errors: the model is unknown, the plan cannot train it, the cluster lacks GPUs,
    or operators have no times because neither a GPU nor its peak rate is set.
    """
    if config.jobs:
        singles = zip(config.jobs, config.single_jobs(), strict=True)
        return config.model_copy(update={"jobs": tuple(_settled_job(job, single) for job, single in singles)})
    workload = config.workload
    if workload.model is None or workload.plan is None:
        return config
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training import rules

    model, plan = find(workload.model), workload.plan
    if workload.framework == "inference":
        from nadi.workload.generators.inference.deployment import settle

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


def _settled_job(job: "JobSection", single: "RunConfig") -> "JobSection":
    """Return a job with its plan settled; single: the configuration of the job alone."""
    try:
        plan = settled(single).workload.plan
    except ValueError as error:
        raise ConfigError(f'job "{job.name}": {error}') from None
    if plan is None:
        return job
    if job.gpus not in {None, plan.gpus}:
        raise ConfigError(f'job "{job.name}": found gpus = {job.gpus} and a plan of {plan.gpus} GPUs; expected no gpus')
    return job.model_copy(update={"plan": plan, "gpus": plan.gpus})


def training_plan(config: "RunConfig") -> "ParallelPlan | None":
    """Return the plan of a settled training; None if the configuration names traces or a served model."""
    workload = config.workload
    return None if workload.model is None or workload.framework == "inference" else workload.plan


def model_and_plan(config: "RunConfig") -> "tuple[Model, ParallelPlan] | None":
    """Return model and plan of a settled training; None if the configuration names traces or a served model."""
    plan = training_plan(config)
    if plan is None:
        return None
    from nadi.workload.generators.models import find

    return find(config.workload.model or ""), plan


def training(config: "RunConfig", iterations: int = 1) -> Training | None:
    """Return the training of a settled configuration, None as in `model_and_plan`; iterations: of a job."""
    found = model_and_plan(config)
    if found is None:
        return None
    peak, gpu = config.compute.peak_flops, config.compute.gpu
    return Training(*found, peak or (find_gpu(gpu).peak_flops.get(found[1].dtype) if gpu else None), iterations)


def serving_and_requests(config: "RunConfig") -> "tuple[Serving, tuple[Request, ...]] | None":
    """Return deployment and requests of a configuration, None if it serves no model; WorkloadError if contradictory."""
    workload = config.workload
    if workload.model is None or workload.plan is None or workload.framework != "inference":
        return None
    from nadi.configuration.sections import ServingSection
    from nadi.workload.generators.inference import Lengths, RequestStream, Serving, requests_of
    from nadi.workload.generators.models import find

    section, gpu = config.serving or ServingSection(), config.compute.gpu
    serving = Serving(
        model=find(workload.model),
        plan=workload.plan,
        batch=section.batch,
        chunk=section.chunk,
        prompt_tokens=section.prompt_tokens,
        gpu=None if gpu is None else find_gpu(gpu),
        kv_tokens=section.kv_tokens,
    )
    count = section.requests or section.batch * serving.plan.dp
    prompt, answer = Lengths.parse(section.prompt, "prompt"), Lengths.parse(section.generate, "generate")
    return serving, requests_of(RequestStream(count, prompt, answer, seed=section.seed))


def vendor_tables(config: "RunConfig") -> str:
    """Return package and version of NVIDIA's measured tables if operators may take their times from them, else ""."""
    return nvidia.installed() if config.compute.gpu and config.compute.vendor_tables else ""


def remarks(config: "RunConfig", num_npus: int | None = None) -> list[str]:
    """Return remarks on a model's run of so many NPUs (None = not known): memory exceeds the GPUs', or NPUs idle."""
    if config.jobs:
        singles = zip(config.jobs, config.single_jobs(), strict=True)
        return [f'job "{job.name}": {remark}' for job, single in singles for remark in remarks(single)]
    trained = model_and_plan(config)
    if trained is None:
        return []
    from nadi.workload.generators.memory import does_not_fit

    texts = []
    gpu = config.compute.gpu
    if gpu is not None:
        texts = [does_not_fit(*trained, find_gpu(gpu).memory_bytes, config.workload.framework)]
    plan = trained[1]
    if num_npus is not None and plan.gpus < num_npus:
        texts.append(
            f"{num_npus - plan.gpus:,} of {num_npus:,} NPUs have nothing to do: the plan is of {plan.gpus:,} GPUs"
        )
    return [text for text in texts if text]


def trace_set(config: "RunConfig", num_npus: int, is_own_npu: NDArray[np.bool_] | None) -> TraceSet:
    """Return traces of a configuration's model and plan; idle NPUs beyond it; is_own_npu: bool[npus], None = all."""
    from nadi.workload.generators.models import find
    from nadi.workload.generators.training.generator import generate

    plan = cast("ParallelPlan", config.workload.plan)  # WorkloadSection refuses a model without one
    if plan.gpus > num_npus:
        replicas = num_npus * plan.dp // plan.gpus
        smaller = f"dp{replicas} ({replicas * plan.gpus // plan.dp} GPUs), or " if replicas else ""
        raise ConfigError(
            f"[workload] plan: {plan} is of {plan.gpus} GPUs, the fabric has {num_npus} NPUs; expected {smaller}"
            f"a fabric of {plan.gpus}"
        )
    served = serving_and_requests(config)
    if served is not None:
        from nadi.workload.generators.inference import generate as serve

        traces = serve(*served)
    else:
        traces = generate(find(config.workload.model or ""), plan, config.workload.framework)
    return on_npus(traces, num_npus, is_own_npu)


def on_npus(traces: TraceSet, num_npus: int, is_own_npu: NDArray[np.bool_] | None) -> TraceSet:
    """Return traces for a fabric with `num_npus` NPUs; others idle. is_own_npu: bool[npus], None = all."""
    trace_of_npu = np.full(num_npus, IDLE, np.int32)
    trace_of_npu[: traces.npus] = traces.trace_of_npu
    if is_own_npu is not None:
        trace_of_npu[~is_own_npu] = ELSEWHERE
    return replace(traces, trace_of_npu=trace_of_npu)

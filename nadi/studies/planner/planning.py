"""The planner's main path: settle the request, time every candidate's step, check the best with contention.

GPU times in the energy and cost of a step are those of closed forms; bytes per link are derived from the traces, as in
runs at closed forms.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from nadi.configuration import MAX_GPUS
from nadi.energy import EnergyTable, read_table
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from nadi.inputs.units import GIB
from nadi.launching.ending import EndedBySignalError, Interrupts
from nadi.launching.installation import source_hash
from nadi.launching.progress import NoProgress, Progress
from nadi.pdes.fidelity import FLUID, REFERENCE
from nadi.studies.planner import step as steps
from nadi.studies.planner.search import FoundPlans, PlanSearch, ProgressFile, RankedPlan, axes_text, best_plans
from nadi.studies.planner.space import DEFAULT_RESERVE, Candidate, MemoryReserve, PlanSpace, candidates
from nadi.topologies import clusters
from nadi.topologies.clusters import Cluster
from nadi.workload.compute import IN_STEPS, ComputeTimes, Gpu, find_gpu
from nadi.workload.generators import models
from nadi.workload.generators.models import Model
from nadi.workload.generators.training import ParallelPlan, parallel_plan, rules

_VALUES = re.compile(r",(?![^,:]*=)")


@dataclass(frozen=True)
class PlanRequest:
    """A request to search parallel plans for one model on one cluster."""

    model: Model  # model to train
    cluster: Cluster  # cluster to train on
    gpus: int  # number of GPUs of each plan
    base: ParallelPlan  # user's constraints of --plan: each field that was given holds for every plan
    framework: rules.Framework = "megatron"  # training framework whose rules plans keep
    gpu: str = ""  # name of the GPU in place of the cluster's; "" = the cluster's
    fabric: dict[str, Any] = field(default_factory=dict)  # parameters that override those of the cluster's topology
    reserve: MemoryReserve = DEFAULT_RESERVE  # memory of each GPU that plans must leave free
    # number of best plans that the search finds for certain; it skips plans that cannot be among them
    top: int = 10
    confirm: int = 3  # number of the best plans to check with contention
    confirm_by: str = REFERENCE  # model of the network that checks them: REFERENCE or FLUID of pdes.fidelity
    workers: int = 1  # number of worker processes
    shard: tuple[int, int] = (0, 1)  # index and number of shards of the candidates; (0, 1) = all candidates
    energy_table: Path | None = None  # path of powers and prices that override the defaults; None = defaults only
    # number of tokens of a whole training, for its days, energy and cost; 0 = do not report a training
    tokens: float = 0.0


class PlanRanking(NamedTuple):
    """The ranked plans of a request."""

    request: PlanRequest  # request that was answered
    gpu: str  # name of the GPU whose operator times the steps use
    memory_bytes: int  # memory capacity of one GPU in bytes
    reserve_bytes: int  # GPU memory in bytes that every plan leaves unused
    table: EnergyTable  # powers and prices
    # plans in ascending order of time per token; those that flows have timed first, in ascending order of that time
    rows: list[RankedPlan]
    confirmed: list[steps.PacketStepTime] | list[steps.FlowStepTime]  # step times with contention of the first rows
    valid: int  # number of plans that keep the rules and the constraints
    too_large: int  # number of valid plans that do not fit in memory
    skipped: int  # number of plans without a row, because their lower bound exceeds the time of the n-th best plan
    left: int  # number of plans that may be among the best, but were not timed because the search was stopped
    stopped: BaseException | None  # signal that stopped the search or the confirmation; None = both are finished


def rank_plans(request: PlanRequest, progress: Progress | NoProgress, file: ProgressFile | None = None) -> PlanRanking:
    """Search the best plans of a request and rank them by time per token; ConfigError if none fits in memory.

    A signal stops the search: the ranking then has the plans that were found so far; without any, the signal is raised.

    Args:
        request: The model, the cluster and the ranges of plans to search.
        file: The file with results of an earlier search of this request, which this search continues and completes;
            None for no file.
        progress: The display of the search.
    """
    table = read_table(request.energy_table)
    gpu = find_gpu(request.gpu or request.cluster.gpu)
    memory_bytes = gpu.memory_bytes
    reserve_bytes = request.reserve.bytes_of(memory_bytes, gpu.name)
    plan_bytes = memory_bytes - reserve_bytes
    machine = steps.target_machine(
        request.cluster, request.gpus, ComputeTimes(gpu, pace=IN_STEPS.among(request.gpus)), request.fabric
    )
    known = machine.for_rules
    space = PlanSpace(request.gpus, request.cluster.gpus_per_host, plan_bytes, request.base, request.framework, known)
    valid = list(candidates(request.model, space))
    fitting = [candidate for candidate in valid if candidate.fits]
    if not fitting:
        raise ConfigError(_none_fits(request, valid, gpu.name, memory_bytes, reserve_bytes))
    number, count = request.shard
    chosen = fitting[number::count]
    search = PlanSearch(machine, request.model, request.framework, gpu.peak_of(request.base.dtype) * request.gpus)
    file = file or ProgressFile(None)
    found = FoundPlans(chosen, max(request.top, request.confirm))
    found.add_known(search, *file.search(_identity(request, machine, gpu, plan_bytes)))
    file.tell(progress, len(chosen))
    confirmed: list[steps.PacketStepTime] | list[steps.FlowStepTime] = []
    stopped = None
    try:
        best_plans(found, search, request.workers, file, progress)
        rows, confirmed = _confirmed(request, machine, found.best(), progress)
    except (KeyboardInterrupt, EndedBySignalError) as error:
        stopped = Interrupts.take() or error
        file.save()
        rows = found.best()
        if not rows:
            raise stopped from None
    skipped = len(chosen) - len(rows) - found.left
    too_large = len(valid) - len(fitting)
    of_search = len(valid), too_large, skipped, found.left, stopped
    return PlanRanking(request, gpu.name, memory_bytes, reserve_bytes, table, rows, confirmed, *of_search)


def _identity(request: PlanRequest, machine: steps.TargetMachine, gpu: Gpu, plan_bytes: int) -> str:
    """Return a text that differs for requests whose candidates or step times may differ."""
    graph = hashlib.sha256()
    for name, column in vars(machine.graph).items():
        if isinstance(column, np.ndarray):
            graph.update(name.encode() + np.ascontiguousarray(column).tobytes())
    of_plans = request.model, request.gpus, request.base, request.base.constraints(), request.framework, plan_bytes
    of_times = (
        request.cluster,
        sorted(request.fabric.items()),
        graph.hexdigest(),
        gpu,
        source_hash(),
        sorted(plug_ins.LOADED.values()),
    )
    return "\n".join(map(repr, (*of_plans, request.shard, *of_times)))


def _confirmed(
    request: PlanRequest, machine: steps.TargetMachine, rows: list[RankedPlan], progress: Progress | NoProgress
) -> tuple[list[RankedPlan], list[steps.PacketStepTime] | list[steps.FlowStepTime]]:
    """Return the ranked plans, and the step times with contention of the first of them."""
    checked = rows[: request.confirm]
    of_all = request.cluster, machine, request.model
    if request.confirm_by != FLUID:
        return rows, [
            steps.packet_step_time(*of_all, row.candidate.plan, request.framework, row.step, progress)
            for row in checked
        ]
    timed = []
    for done, row in enumerate(checked, 1):
        progress.begin(f"{done} of {len(checked)} plans by flows: {axes_text(row.candidate.plan)}")
        timed.append((steps.flow_step_time(*of_all, row.candidate.plan, request.framework), row))
    timed.sort(key=lambda pair: pair[0].step_ps / pair[1].bounded.tokens)
    return [*(row for _, row in timed), *rows[request.confirm :]], [step for step, _ in timed]


def _none_fits(
    request: PlanRequest, candidates: Sequence[Candidate], gpu_name: str, memory_bytes: int, reserve_bytes: int
) -> str:
    """Return the message for a request with no plan that fits, of all valid plans; sizes are those of one GPU."""
    smallest = min(candidates, key=lambda candidate: candidate.peak_bytes)
    less = f" less {reserve_bytes / GIB:.1f} in reserve" if reserve_bytes else ""
    return (
        f"{request.model.name} on {request.gpus} {gpu_name}: none of {len(candidates)} valid plans fits; the smallest "
        f"is {smallest.plan} with {smallest.peak_bytes / GIB:.1f} GiB of {memory_bytes / GIB:.1f}{less}; "
        f"expected more GPUs, {'a smaller reserve, ' if smallest.peak_bytes <= memory_bytes else ''}or offload"
    )


def plan_request(model: str, cluster: str, num_gpus: int, plan_option: str, framework: str, gpu: str) -> PlanRequest:
    """Return the request of named model, cluster, framework and `gpu` ("" = the cluster's) with values of --plan.

    Args:
        model: The name of the model.
        cluster: The name of the cluster.
        framework: The name of the training framework.
        gpu: The name of the GPU; "" means the cluster's.
        num_gpus: The number of GPUs to use.
        plan_option: The value of --plan, keys with fixed values.
    """
    if framework not in get_args(rules.Framework) or framework == "inference":
        raise ConfigError(f"--framework {framework}: expected megatron, deepspeed or fsdp")
    known: rules.Framework = framework  # type: ignore[assignment]
    return PlanRequest(models.find(model), clusters.find(cluster), num_gpus, parallel_plan(plan_option), known, gpu)


def sweep_requests(request: PlanRequest, sweep_option: str) -> dict[str, PlanRequest]:
    """Return a request for each value of KEY=VALUE,VALUE by name, or one by model name; ConfigError if it is wrong.

    Args:
        request: The request whose keys are varied.
        sweep_option: The value of --sweep.
    """
    if not sweep_option:
        return {request.model.name: request}
    key, _, text = (part.strip() for part in sweep_option.partition("="))
    # A comma before key=value separates parameters: gpu=h100:power=500W,memory=2.4TB/s,h200 are two values
    values = [value.strip() for value in _VALUES.split(text)]
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

"""Immutable, validated configuration of a run, and what follows from it alone; `run_file` reads it from a run file.

Methods import the trace generators on use, because a run of traces does not need them and starts faster without.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import BaseModel, Field, PrivateAttr, create_model, model_validator

from nadi.configuration import MAX_JOBS, values
from nadi.configuration.machine import ComputeSection, EnergySection, FaultSection, MemorySection, TopologySection
from nadi.configuration.optical import OpticalSection
from nadi.configuration.sections import (
    EngineSection,
    NetworkSection,
    OutputSection,
    SystemSection,
    known_model,
    network_section,
)
from nadi.configuration.values import Section
from nadi.configuration.work import NO_WORKLOAD, JobSection, ServingSection, WorkloadOrJobs
from nadi.energy import read_table
from nadi.errors import ConfigError
from nadi.inputs.documents import checked
from nadi.topologies import Graph
from nadi.topologies.clusters import find as find_cluster
from nadi.workload import TraceSet
from nadi.workload.compute import find_gpu, gpu_names, nvidia

if TYPE_CHECKING:
    from nadi.workload.generators.inference import Request, Serving
    from nadi.workload.generators.models import Model
    from nadi.workload.generators.training import ParallelPlan


class Training(NamedTuple):
    """Training of a model that a run simulates."""

    model: "Model"
    plan: "ParallelPlan"
    peak_flops: float | None  # floating-point operations per second of a GPU in the plan's type; None = not known
    iterations: int  # number of times that the run does the plan's steps


class Outputs(NamedTuple):
    """What a configuration says about results."""

    folder: Path | None  # folder of the results; None = not named
    has_page: bool  # whether the folder gets report.html
    checkpoint_s: float  # wall time between two checkpoints in seconds, 0 = none
    can_save: bool  # whether the network's model can save its state


@dataclass(frozen=True)
class NamedKeys:
    """Keys that a user set. They do not change the meaning of a configuration, so any two objects are equal."""

    keys: frozenset[str] = field(default=frozenset(), compare=False)  # sections and keys, "network.mtu"
    # also those that files of another simulator set, whose users know them by other names
    with_files: frozenset[str] = field(default=frozenset(), compare=False)


class RunConfig(Section):
    """Configuration of a run."""

    workload: WorkloadOrJobs
    jobs: tuple[JobSection, ...] = Field((), description="jobs that share the fabric, instead of [workload]")
    serving: ServingSection | None = None
    topology: TopologySection
    system: SystemSection = SystemSection()
    network: NetworkSection = NetworkSection()
    compute: ComputeSection = ComputeSection()
    memory: MemorySection = MemorySection()
    engine: EngineSection = EngineSection()
    output: OutputSection = OutputSection()
    energy: EnergySection | None = None
    faults: tuple[FaultSection, ...] = Field((), description="failures and slowdowns with their times")
    optical: tuple[OpticalSection, ...] = Field((), description="optical circuit switches and their schedules")

    _named: NamedKeys = PrivateAttr(default=NamedKeys())

    @property
    def named(self) -> frozenset[str]:
        """Return the keys that the user set, "network.mtu", without those of a cluster; empty if unknown."""
        return self._named.keys

    @property
    def names_workers(self) -> bool:
        """Whether the run names its number of workers."""
        return self.engine.workers is not None

    @property
    def not_derived(self) -> frozenset[str]:
        """Return the keys that the user, or files of another simulator, set; Nadi derived all others."""
        return self._named.with_files

    def with_named(self, keys: Iterable[str]) -> Self:
        """Return the configuration with the keys that the user set; those of an earlier call remain not derived."""
        config, named = self.model_copy(), frozenset(keys)
        config._named = NamedKeys(named, self._named.with_files | named)  # noqa: SLF001 - of this class
        return config

    @model_validator(mode="before")
    @classmethod
    def _work_of_jobs(cls, given: object) -> object:
        """Let [[jobs]] stand for [workload]; refuse both."""
        if not isinstance(given, dict) or not given.get("jobs"):
            return given
        if given.get("workload", NO_WORKLOAD) is not NO_WORKLOAD:
            raise ValueError("found [workload] and [[jobs]]; expected one of them")
        return given | {"workload": NO_WORKLOAD}

    @model_validator(mode="after")
    def _jobs_differ(self) -> Self:
        """Refuse jobs with equal names, and sections that jobs cannot share."""
        names = [name for job in self.jobs for name in job.names]
        again = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if again is not None:
            raise ValueError(f'[[jobs]]: found the name "{again}" twice; expected different names')
        if len(names) > MAX_JOBS:
            raise ValueError(f"[[jobs]]: found {len(names):,} jobs with all copies; expected at most {MAX_JOBS:,}")
        if self.jobs and self.serving is not None:
            raise ValueError("[serving] is set beside [[jobs]]; expected [jobs.serving] in the job that serves")
        if self.jobs and self.memory.remote in {"pool", "node"}:
            raise ValueError(f'[memory] remote: found "{self.memory.remote}" beside [[jobs]]; expected "npu" or "none"')
        return self

    @model_validator(mode="after")
    def _serves(self) -> Self:
        """Refuse [serving] in runs that do not serve a model."""
        if self.serving is not None and (self.workload.framework != "inference" or self.workload.model is None):
            raise ValueError(
                '[serving] is set without a model that is served; expected [workload] framework = "inference"'
            )
        return self

    def named_sections(self) -> Iterator[tuple[str, BaseModel]]:
        """Yield each section with its name, those of lists with their numbers, and sections in them."""
        for name, section in self:
            of_list = isinstance(section, tuple)
            places = {f"{name}.{number}": each for number, each in enumerate(section)} if of_list else {name: section}
            for place, each in places.items():
                if isinstance(each, BaseModel):
                    yield place, each
                    yield from ((f"{place}.{key}", inner) for key, inner in each if isinstance(inner, BaseModel))

    def with_paths(self, change: values.Change) -> Self:
        """Return the configuration with a change applied to each path that it names."""
        sections: dict[str, Any] = {}
        for name, section in self:
            if isinstance(section, BaseModel):
                sections[name] = values.with_paths(section, change)
            elif isinstance(section, tuple):
                sections[name] = tuple(values.with_paths(each, change) for each in section)
        return self.model_copy(update=sections)

    def with_paths_from(self, folder: Path) -> Self:
        """Return the configuration with relative paths counted from the run file's folder."""
        return self.with_paths(lambda path: str(folder / path))

    def settled(self) -> dict[str, Any]:
        """Return all values as in a run file, including defaults; for summary.json."""
        return self.model_dump(mode="json", exclude_none=True, exclude={"workload"} if self.jobs else {"jobs"})

    def check_energy(self) -> None:
        """Raise ConfigError if the table of powers and prices is wrong."""
        if self.energy is not None:
            read_table(self.energy.table)

    def decided(self, **keys_of_section: Mapping[str, Any]) -> Self:
        """Return the configuration with values that a run has decided, by section and key."""
        changed = {name: getattr(self, name).model_copy(update=dict(keys)) for name, keys in keys_of_section.items()}
        return self.model_copy(update=changed)

    def _to_compare(self, **sections: tuple[Section, ...]) -> Self:
        """Return the configuration of a run of other sections whose end results compare with this run's."""
        kept = self.decided(output={"alone": False, "without_faults": False}, engine={"checkpoint": 0})
        return kept.model_copy(update=sections)

    def without_faults(self) -> Self:
        """Return the configuration of the same run without its faults."""
        return self._to_compare(faults=())

    def alone(self, job: JobSection, name: str, npus: tuple[int, ...], begin_ps: int) -> Self:
        """Return the configuration of one copy of a job alone on the fabric: its name, NPUs and start."""
        own = {"name": name, "gpus": len(npus), "placement": npus, "start": f"{begin_ps}ps", "repeat": 1}
        return self._to_compare(jobs=(job.model_copy(update=own),))

    def of_job(self, job: JobSection) -> Self:
        """Return the configuration whose only work is that of a job, on a fabric of its own NPUs."""
        return self.model_copy(update={"workload": job, "serving": job.serving, "jobs": ()})

    def single_jobs(self) -> "tuple[Self, ...]":
        """Return a configuration for each entry of [[jobs]] (`of_job`); this one alone if there are none."""
        return tuple(self.of_job(job) for job in self.jobs) or (self,)

    def outputs(self) -> Outputs:
        """Return what the configuration says about results, before its run is resolved."""
        return Outputs(self.output.dir, self.output.report, self.engine.checkpoint, self.network.model.has_links)

    def with_plans(self) -> Self:
        """Return the configuration with plan and GPU settled, and with as many GPUs of its cluster as the plan has.

        Without a model it stays unchanged. Errors: the model is unknown, the plan cannot train it, the cluster lacks
        GPUs, or operators have no times because neither a GPU nor its peak rate is set.
        """
        if self.jobs:
            return self.model_copy(update={"jobs": tuple(map(self._job_with_plan, self.jobs))})
        workload = self.workload
        if workload.model is None or workload.plan is None:
            return self
        from nadi.workload.generators.models import find
        from nadi.workload.generators.training import rules

        model, plan = find(workload.model), workload.plan
        if workload.framework == "inference":
            from nadi.workload.generators.inference import settle

            plan = settle(model, plan)
        else:
            rules.check(model, plan, workload.framework)
            plan = rules.settle(model, plan, workload.framework)
        workload = workload.model_copy(update={"plan": plan})
        topology = self.topology
        if topology.cluster is not None and topology.gpus is None:
            find_cluster(topology.cluster).topology(plan.gpus)
            topology = topology.model_copy(update={"gpus": plan.gpus})
        if self.compute.gpu is None and self.compute.peak_flops is None:
            known = ", ".join(gpu_names())
            raise ConfigError(
                f"[compute] gpu: missing beside [workload] model; expected one of {known}, or a TOML file"
            )
        return self.model_copy(update={"workload": workload, "topology": topology})

    def _job_with_plan(self, job: JobSection) -> JobSection:
        """Return a job with its plan settled."""
        try:
            plan = self.of_job(job).with_plans().workload.plan
        except ValueError as error:
            raise ConfigError(f'job "{job.name}": {error}') from None
        if plan is None:
            return job
        if job.gpus not in {None, plan.gpus}:
            found = f"found gpus = {job.gpus} and a plan of {plan.gpus} GPUs"
            raise ConfigError(f'job "{job.name}": {found}; expected no gpus')
        return job.model_copy(update={"plan": plan, "gpus": plan.gpus})

    def training_plan(self) -> "ParallelPlan | None":
        """Return the plan of a settled training; None if the configuration names traces or a served model."""
        workload = self.workload
        return None if workload.model is None or workload.framework == "inference" else workload.plan

    def model_and_plan(self) -> "tuple[Model, ParallelPlan] | None":
        """Return model and plan of a settled training; None as for `training_plan`."""
        plan = self.training_plan()
        if plan is None:
            return None
        from nadi.workload.generators.models import find

        return find(self.workload.model or ""), plan

    def training(self, iterations: int = 1) -> Training | None:
        """Return the settled training, None as for `training_plan`; iterations: of a job."""
        found = self.model_and_plan()
        if found is None:
            return None
        peak, gpu = self.compute.peak_flops, self.compute.gpu
        return Training(*found, peak or (find_gpu(gpu).peak_flops.get(found[1].dtype) if gpu else None), iterations)

    def serving_and_requests(self) -> "tuple[Serving, tuple[Request, ...]] | None":
        """Return deployment and requests, None if no model is served; WorkloadError if they are contradictory."""
        workload = self.workload
        if workload.model is None or workload.plan is None or workload.framework != "inference":
            return None
        from nadi.workload.generators.inference import Lengths, RequestStream, Serving, requests_of
        from nadi.workload.generators.models import find

        section, gpu = self.serving or ServingSection(), self.compute.gpu
        serving = Serving(
            model=find(workload.model),
            plan=workload.plan,
            batch=section.batch,
            chunk=section.chunk,
            prompt_tokens=section.prompt_tokens,
            gpu=None if gpu is None else find_gpu(gpu),
            kv_tokens=section.kv_tokens,
            software=section.software,
        )
        count = section.requests or section.batch * serving.plan.dp
        prompt, answer = Lengths.parse(section.prompt, "prompt"), Lengths.parse(section.generate, "generate")
        return serving, requests_of(RequestStream(count, prompt, answer, seed=section.seed))

    def vendor_tables(self) -> str:
        """Return package and version of NVIDIA's tables if operators may take their times from them, else ""."""
        return nvidia.installed() if self.compute.gpu and self.compute.vendor_tables else ""

    def model_warnings(self, num_npus: int | None = None) -> list[str]:
        """Return warnings about a model's run of so many NPUs (None = not known): too little memory, or NPUs idle."""
        if self.jobs:
            singles = zip(self.jobs, self.single_jobs(), strict=True)
            return [f'job "{job.name}": {warning}' for job, single in singles for warning in single.model_warnings()]
        trained, gpu = self.model_and_plan(), self.compute.gpu
        if trained is None:
            return []
        from nadi.workload.generators.memory import does_not_fit

        texts = []
        if gpu is not None:
            texts = [does_not_fit(*trained, find_gpu(gpu).memory_bytes, self.workload.framework)]
        gpus = trained[1].gpus
        if num_npus is not None and gpus < num_npus:
            texts.append(f"{num_npus - gpus:,} of {num_npus:,} NPUs have nothing to do: the plan is of {gpus:,} GPUs")
        return [text for text in texts if text]

    def generated_traces(self, num_npus: int, graph: Graph) -> TraceSet:
        """Return the traces of model and plan; ConfigError if the plan has more GPUs than the fabric's NPUs.

        Args:
            num_npus: The number of NPUs for the plan.
            graph: The fabric, whose NVLink domains decide keys that the plan leaves open.
        """
        from nadi.workload.generators.models import find
        from nadi.workload.generators.training import rules
        from nadi.workload.generators.training.generator import generate

        plan = self.workload.plan
        assert plan is not None, "WorkloadSection refuses a model without a plan"  # noqa: S101 - for mypy
        if plan.gpus > num_npus:
            replicas = num_npus * plan.dp // plan.gpus
            smaller = f"dp{replicas} ({replicas * plan.gpus // plan.dp} GPUs), or " if replicas else ""
            raise ConfigError(
                f"[workload] plan: {plan} is of {plan.gpus} GPUs, the fabric has {num_npus} NPUs; expected {smaller}"
                f"a fabric of {plan.gpus}"
            )
        served = self.serving_and_requests()
        if served is None:
            model, framework = find(self.workload.model or ""), self.workload.framework
            gpu = None if self.compute.gpu is None else find_gpu(self.compute.gpu)
            return generate(model, rules.on_machine(model, plan, framework, rules.machine_of(graph, gpu)), framework)
        from nadi.workload.generators.inference import generate as serve

        return serve(*served)


def validated(
    tree: Mapping[str, Any], source: object, place_of: Callable[[Sequence[str]], str] = ".".join
) -> RunConfig:
    """Return the configuration of a run file's sections, in which [network] has the keys of the model that it names.

    Args:
        tree: The values of keys by section, without relative paths of plug-ins.
        source: What errors name as the origin of the values.
        place_of: A function from the keys that lead to a wrong value to the text of its place.
    """
    network = tree.get("network")
    try:
        model = known_model(network.get("fidelity")) if isinstance(network, Mapping) else None
        kind = _class_with(NetworkSection if model is None else network_section(model))
    except ConfigError as error:
        raise ConfigError(f"{source}: {place_of(('network', 'fidelity'))}: {error}") from error
    return checked(kind, tree, source, ConfigError, place_of)


@functools.cache
def _class_with(network: type[NetworkSection]) -> type[RunConfig]:
    """Return the class of configurations with this class of [network]."""
    if network is NetworkSection:
        return RunConfig
    return create_model("RunConfig", __base__=RunConfig, network=(network, network()))

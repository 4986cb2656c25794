"""From a configuration to a plan of its run, in which everything is decided (`Resolver.plan`)."""

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nadi import pdes
from nadi.configuration.effects import Effects
from nadi.configuration.input_files import InputFiles, files_read
from nadi.configuration.run_config import RunConfig
from nadi.errors import ConfigError
from nadi.inputs.units import BITS_PER_BYTE, PS_PER_BYTE_AT_1_BPS, format_time
from nadi.launching.installation import source_hash
from nadi.launching.progress import NoProgress, Progress
from nadi.launching.ranks import ALONE, RankGather, together
from nadi.launching.workers import Workers
from nadi.simulation import network_settings as fabric
from nadi.simulation.assembly import (
    check_supported,
    choices,
    optical,
    reading,
    resource_checks,
    schedule,
    with_classes,
    with_flows,
    with_slow_links,
)
from nadi.simulation.assembly.partitioning import Division, Load, measured_load, place, traffic_load
from nadi.simulation.assembly.reading import LoadedWorkload, WorkReader
from nadi.simulation.assembly.resource_checks import Estimate, estimate, of_all_ranks
from nadi.simulation.assembly.workload_phases import phases_of
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.advancing.equivalence import ClassProgram
from nadi.simulation.closed_forms.costs import CollectiveCosts
from nadi.simulation.followed_epochs import FollowedEpochs
from nadi.simulation.mixed_fidelity import coupled_collectives, of_coupled, with_nvlink_closed_forms
from nadi.simulation.run import Roofline, RunPlan, compile_isolated
from nadi.topologies import Graph
from nadi.workload import CollectiveSettings, Program
from nadi.workload.generators.point_to_point import flow_lists


class TimedFabric(NamedTuple):
    """A fabric with its network, on which nothing runs yet."""

    keys: Mapping[str, Mapping[str, Any]]  # values of [network] and [system], settled, for JSON
    graph: Graph
    settings: pdes.Settings  # of packets, if the model has no links
    collectives: CollectiveSettings  # algorithms of collectives
    simulates: bool  # whether the model has links
    overload: str  # why links may carry more than they can, as the model declares it; "" = they cannot
    warnings: Sequence[str]  # sentences about the fabric and about keys without effect


class _Inputs(NamedTuple):
    """Inputs of the engine."""

    config: RunConfig  # configuration with values that were decided
    graph: Graph  # fabric
    work: LoadedWorkload  # work of this rank's NPUs
    settings: pdes.Settings
    workers: Workers
    owner: NDArray[np.int32] | None  # int32[nodes], logical process of each node; None = there is one
    note: str  # what the run has chosen, or that more workers will not pay; "" = nothing
    epochs: FollowedEpochs | None  # epochs of optical switches that follow phases of the workload

    def identity(self, files: Sequence[InputFiles]) -> dict[str, Any]:
        """Return what must be equal where a run continues from a checkpoint: sources, keys that matter, and files."""
        moved = self.config.with_paths(lambda path: Path(path).name)  # folders may have moved
        # a file of a network model is read where it lies
        sections = moved.decided(network={"fidelity": self.config.network.fidelity}).settled()
        sections["network"]["fidelity"] = moved.network.fidelity
        sections.pop("energy", None)
        engine, output = sections["engine"], sections["output"]
        sections["engine"] = {key: engine[key] for key in ("seed", "reuse", "fast_forward")}
        without = {"dir", "report", "alone", "without_faults"}
        sections["output"] = {key: output[key] for key in output if key not in without}
        hashes = {}
        for entry in files:
            section, _, key = entry.key.rpartition(".")
            if section not in {"engine", "energy"}:
                hashes[f"[{section}] {key} = {Path(entry.path).name}"] = entry.sha256
        return {"sources": source_hash(), "keys": sections, "files": hashes}

    def expected(self, progress: Progress, *, force: bool) -> tuple[Self, Estimate]:
        """Return inputs with proxies or coupled flows, and the work of all ranks; refuse too much.

        Args:
            progress: Display of the run's progress.
            force: Whether to accept too much work or memory.
        """
        config, graph, settings, ranks = self.config, self.graph, self.settings, self.workers.ranks
        work, own, is_coupled = self.estimated()
        if ranks.rank == 0:
            compile_isolated(graph, work.program, settings, progress)
        if is_coupled and ranks.rank == 0:
            config = config.decided(network=settings.fidelity.own.coupled)
            kinds = coupled_collectives(work.program, CollectiveCosts(graph, settings), work.collectives)
            settings = replace(settings, coupled=kinds)
        expected = of_all_ranks(own, ranks)
        all_rows = settings
        settings, own = resource_checks.with_rows_of_messages(config.output.flows, settings, own, expected.messages)
        if settings is not all_rows:
            expected = of_all_ranks(own, ranks)
        resource_checks.check_run(own, expected, settings, self.workers.total, force=force)
        # only after check_run: the pairs of NPUs of a run that it refuses would fill the memory
        resource_checks.check_counters(graph, work.program, own)
        return self._replace(config=config, work=work, settings=settings), expected

    def estimated(self) -> tuple[LoadedWorkload, Estimate, bool]:
        """Return work with [network] nvlink, its estimate, and whether collectives are coupled; then without nvlink."""
        graph, loaded, settings = self.graph, self.work, self.settings
        work, one_process = loaded, self.workers.ranks.size * self.workers.processes == 1
        if self.config.network.nvlink != "messages" and not settings.fidelity.own.couples(0):
            work = work._replace(program=with_nvlink_closed_forms(graph, work.program, settings, work.collectives))
        own = estimate(graph, work.program, settings, one_process=one_process)
        if not settings.fidelity.own.couples(own.messages):
            return work, own, False
        # coupled flows take all collectives, those within domains too
        if loaded is not work:
            own = estimate(graph, loaded.program, settings)
        return loaded, of_coupled(graph, loaded.program, settings, own), True

    def laid_out(self, *, force: bool) -> tuple[CollectiveCosts, ClassProgram]:
        """Return costs and program by classes of a run at closed forms; refuse too much memory unless `force`."""
        graph, settings = self.graph, self.settings
        costs = CollectiveCosts(with_slow_links(graph, settings.faults), settings, planned_on=graph)
        by_class = running.laid_out(
            graph, self.work.program, costs, slow_npus=settings.faults.npus, job_slowdowns=settings.job_slowdowns
        )
        resource_checks.check_rows(int(by_class.row_ptr[-1]), force=force)
        return costs, by_class

    def jobs_alone(self) -> Iterator[RunConfig]:
        """Yield the configuration of each job alone on the fabric, on the same NPUs."""
        jobs = self.work.program.jobs
        if jobs is None:
            return
        sections = [section for section in self.config.jobs for _ in range(section.repeat)]
        for number, (name, section) in enumerate(zip(jobs.names, sections, strict=True)):
            yield self.config.alone(section, name, tuple(jobs.npus_of(number).tolist()), int(jobs.begin_ps[number]))


@dataclass(frozen=True, eq=False)
class Resolver:
    """What decides everything about the run of a configuration, of which this is one of the ranks.

    Methods raise ConfigError, TopologyError, TraceError, WorkloadError or PartitionError if the user's input is wrong.
    """

    config: RunConfig
    ranks: RankGather = ALONE
    _: KW_ONLY
    force: bool = False  # whether to allow a run that needs more memory than is free, or more than a day, too

    def plan(self, progress: Progress | None = None, *, has_folder: bool = True, resumes: bool = False) -> RunPlan:
        """Return the plan of the run; on several ranks, each has the plan of its part, or all raise an AgreedError.

        Args:
            progress: The display that announces a compilation of kernels; None = nothing does.
            has_folder: Whether the run has a folder of results; without, it keeps no rows of messages and no
                checkpoints.
            resumes: Whether the run continues from a checkpoint.
        """
        with together(self.ranks):
            engine, force = self.config.engine, self.force
            saves = resumes or engine.checkpoint > 0
            if saves and not has_folder:
                raise ConfigError(
                    "[engine] checkpoint: found no folder of results; expected --out DIR, or dir in [output]"
                )
            self._validate(self.ranks.size)
            # models that run on one worker do so on the first rank
            workers = Workers(self.ranks, alone=True)
            if self.config.network.several_workers:
                counts = engine.workers or 1, engine.lps_per_worker or 1
                workers = Workers(self.ranks, engine.backend, *counts, engine.share_memory)
            inputs = self._inputs(workers, keeps_flows=has_folder, chooses=True)
            files = files_read(self.config, exchange=self.ranks.exchange, may_open=inputs.work.opens)
            identity = inputs.identity(files) if saves else {}
            if inputs.settings.fidelity.model.has_links:
                inputs, expected = inputs.expected(progress or NoProgress(), force=force)
                closed_form = None
            else:
                expected, closed_form = None, inputs.laid_out(force=force) if self.ranks.rank == 0 else None
            return self._plan(inputs, files, identity, expected, closed_form)

    def job_cost(
        self,
        nodes: int,
        ranks_per_node: int,
        threads_per_rank: int,
        progress: Progress,
        limits: resource_checks.NodeLimits,
    ) -> resource_checks.JobCost:
        """Check a run of a batch job on `nodes` nodes as `plan` would check it there, and estimate its cost.

        Args:
            nodes: The number of nodes of the batch job.
            ranks_per_node: The number of MPI ranks on each node.
            threads_per_rank: The number of threads of each rank.
            progress: The display that shows a note on more workers that will not pay.
            limits: The resources of a node.
        """
        ranks, network = nodes * ranks_per_node, self.config.network
        self._validate(ranks)
        lps_per_worker, alone = self.config.engine.lps_per_worker or 1, not network.several_workers
        workers = Workers(workers=ranks * threads_per_rank, lps_per_worker=lps_per_worker, alone=alone)
        inputs = self._inputs(workers, keeps_flows=True)
        if inputs.note:
            progress.say(inputs.note)
        graph, settings = inputs.graph, inputs.settings
        if not settings.fidelity.model.has_links:
            # closed forms run on one rank, so workers make no difference
            _, by_class = inputs.laid_out(force=self.force)
            return resource_checks.cost_at_closed_forms(int(by_class.row_ptr[-1]), graph, limits)
        work, expected, _ = inputs.estimated()
        flows = self.config.output.flows
        settings, expected = resource_checks.with_rows_of_messages(flows, settings, expected, expected.messages)
        cost = resource_checks.cost_of_packets(expected, graph, settings, nodes, ranks_per_node, workers.total, limits)
        resource_checks.check_counters(graph, work.program, expected)
        return cost

    def idle_fabric(self, seed: int) -> TimedFabric:
        """Return the fabric to time collectives on; `seed` is that of hashed path choices."""
        network = self.config.network
        if network.nvlink != "messages":
            found = f'[network] nvlink: found "{network.nvlink}"'
            raise ConfigError(f"{found}, which every row contains anyway; expected another")
        model = network.model
        # closed forms are the other column of the table
        by_packets = {} if model.has_links else {"fidelity": pdes.fidelity.REFERENCE}
        by_seed = self.config.decided(engine={"seed": seed}, network=by_packets)
        reader = WorkReader.of(by_seed, force=self.force)
        settings = reader.fitted_settings(records=False)
        said = [*reader.graph.warnings, *filter(None, [Effects(self.config).without().sentence()])]
        settled = self.config.decided(system={"tick": settings.tick_ps})
        return TimedFabric(
            keys={name: getattr(settled, name).model_dump(mode="json") for name in ("network", "system")},
            graph=reader.graph,
            settings=settings,
            collectives=reader.collective_settings(),
            simulates=model.has_links,
            overload=model.hooks_with(network.own_keys).overload,
            warnings=said,
        )

    def partition_inputs(self, weights: Path | None) -> tuple[Graph, Load, Division]:
        """Return fabric, load and division of a run that several workers share; ConfigError: they cannot.

        Args:
            weights: The folder of an earlier run that gives the load; None = the traces do.
        """
        network, engine = self.config.network, self.config.engine
        if not network.model.several_workers:
            raise ConfigError(
                f"[network] fidelity: found {network.fidelity!r}, which runs on one worker; "
                f"expected {pdes.fidelity.quoted(lambda model: model.several_workers)}"
            )
        if not network.several_workers:
            key = "flows" if network.flows else "routing"
            found = ", ".join(network.flows) or network.routing
            raise ConfigError(f"[network] {key}: found {found}, which runs on one worker; expected another, or none")
        reader = WorkReader.of(self.config, force=self.force)
        graph, division = reader.graph, Division(engine.partitioner, engine.weights, reader.settings())
        # measured packets need no traces
        if weights is not None:
            return graph, measured_load(weights, graph), division
        return graph, traffic_load(graph, reader.work().program, division.settings), division

    def _validate(self, num_ranks: int) -> None:
        """Refuse worker processes on several MPI ranks, and, unless `force`, too large models."""
        engine, force = self.config.engine, self.force
        if num_ranks > 1 and engine.backend == "processes":
            raise ConfigError(f"[engine] backend: found processes on {num_ranks} MPI ranks; expected threads there")
        if num_ranks > 1 and engine.fast_forward:
            raise ConfigError(f"[engine] fast_forward: found on {num_ranks} MPI ranks; expected threads of one process")
        from nadi.workload.generators.training.generator import NODE_BYTES, nodes_at_most

        # before anything is generated, which would fill the memory first
        for single in self.config.single_jobs():
            served, trained = single.serving_and_requests(), single.model_and_plan()
            if served is not None:
                from nadi.workload.generators.inference import nodes_at_least

                nodes = nodes_at_least(*served)
                resource_checks.check_trace(nodes, fewer="requests or tokens", node_bytes=NODE_BYTES, force=force)
            if trained is not None:
                nodes = nodes_at_most(*trained, single.workload.framework)
                resource_checks.check_trace(nodes, fewer="micro-batches or steps", node_bytes=NODE_BYTES, force=force)

    def _inputs(self, workers: Workers, *, keeps_flows: bool, chooses: bool = False) -> _Inputs:
        """Return fabric, this rank's work, owners of nodes, and settings; refuse unsupported combinations.

        `keeps_flows`: results may have a row per message; `chooses`: workers that the run does not name are chosen.
        """
        config, reader = self.config, WorkReader.of(self.config, self.ranks.exchange, force=self.force)
        network, engine, traffic = config.network, config.engine, config.workload.traffic
        graph, switches = reader.graph, reader.optical
        settings = reader.settings(record_flows=keeps_flows and config.output.flows != "none")
        division = Division(engine.partitioner, engine.weights, settings)
        named = workers
        work, owner, workers, note = self._placed(reader, workers, division, chooses=chooses)
        _return_freed_memory()
        slowdown, job_slowdowns = reader.interference(work)
        if slowdown is not None:
            config = config.decided(system={"compute_slowdown": slowdown})
        sample_ps = _sample_ps(config.output.sample, graph, settings)
        check_supported(config.faults, network.model, has_pauses=network.anywhere("pfc"))
        optical.check_supported(config.optical, network, config.faults)
        cuts = network.anywhere("cut_through")
        scheduled = functools.partial(schedule, config.faults, network.detection_time, graph, cut_through=cuts)
        epochs = None
        if switches.phases:
            phases = phases_of(work.program, switches.phases, reader.exchange)
            epochs = FollowedEpochs(switches, phases, scheduled)
        faults = epochs.faults(epochs.guessed()) if epochs else scheduled(circuits=switches.circuits())
        settings = replace(
            settings,
            compute_slowdown=settings.compute_slowdown if slowdown is None else slowdown,
            job_slowdowns=job_slowdowns,
            # collectives that are replayed send no packets, which samples count
            reuse=engine.reuse == "exact" and not sample_ps,
            fast_forward=engine.fast_forward,
            queue_pairs=settings.queue_pairs if traffic is None else traffic.queue_pairs,
            remote_sharers=config.memory.remote_sharers if config.memory.remote == "npu" else 1,
            sample_ps=sample_ps,
            faults=faults or settings.faults,
        )
        _check_durations(int(work.program.node_duration_ps.max(initial=0)), settings)
        settings = with_flows(settings, work.program, network.flows)
        settings = fabric.fitted(graph, with_classes(settings, work.program, network.classes or {}, reader.exchange))
        chosen_ps = self._tick_ps(graph, work.program, settings) if config.system.tick is None else 0
        settings = replace(settings, tick_ps=settings.tick_ps or chosen_ps)
        said = choices.sentence(chosen_ps, workers if workers != named else None) if chooses else ""
        decided = {"workers": workers.workers, "lps_per_worker": workers.lps_per_worker}
        config = config.decided(
            system={} if config.system.tick is not None else {"tick": chosen_ps},
            engine={key: value for key, value in decided.items() if getattr(engine, key) is None},
        )
        return _Inputs(config, graph, work, settings, workers, owner, note or said, epochs)

    def _placed(
        self, reader: WorkReader, workers: Workers, division: Division, *, chooses: bool
    ) -> tuple[LoadedWorkload, NDArray[np.int32] | None, Workers, str]:
        """Return this rank's work, owners of nodes, workers, chosen if the run names none, and a note on these."""
        graph, engine = reader.graph, self.config.engine
        names_both = engine.workers is not None and engine.lps_per_worker is not None
        is_fixed = names_both or workers.alone or not division.settings.fidelity.model.has_packets
        if is_fixed or not chooses or self.ranks.size > 1:
            work, owner, note = place(reader.work, graph, workers, division)
            return work, owner, workers, note
        work = reader.work(None)
        reuses = engine.reuse == "exact" and self.config.output.sample is None
        settings = replace(division.settings, reuse=reuses)
        chosen = choices.workers(engine, graph, estimate(graph, work.program, settings, one_process=True), workers)
        work, owner, note = place(lambda _: work, graph, chosen, division)
        if note and engine.workers is None:  # fewer pay
            chosen, owner, note = workers, None, ""
        return work, owner, chosen, note

    def _tick_ps(self, graph: Graph, program: Program, settings: pdes.Settings) -> int:
        """Return the tick of a run that names none; the same for all ranks, with and without exact reuse."""
        # only steps of a model: traces of users may measure what a tick hides
        if self.config.training_plan() is None or not settings.fidelity.model.has_packets:
            return 0
        return choices.tick_ps(self.ranks.exchange(choices.own_work(graph, program, settings)))

    def _plan(
        self,
        inputs: _Inputs,
        files: Sequence[InputFiles],
        identity: Mapping[str, Any],
        expected: Estimate | None,
        closed_form: tuple[CollectiveCosts, ClassProgram] | None,
    ) -> RunPlan:
        """Return the plan of a run with these inputs, with what its reports say about them."""
        config, graph, work, settings = inputs.config, inputs.graph, inputs.work, inputs.settings
        compute, memory, output = config.compute, config.memory, config.output
        own = reading.count(
            work, has_remote_memory=memory.remote is not None, has_gpu=compute.gpu is not None, model=compute.model
        )
        counts = reading.total(self.ranks.exchange(own))
        traffics = [single.workload.traffic for single in config.single_jobs()]
        flow_files = [traffic.file for traffic in traffics if traffic is not None]
        roofline = Roofline(compute.peak_flops or 0.0, (memory.bandwidth or 0) / BITS_PER_BYTE)
        circles = fabric.circular_waits(graph, settings)
        announced = resource_checks.announcement(expected, settings, inputs.workers.total) if expected else ""
        return RunPlan(
            **{name: value for name, value in work._asdict().items() if name != "frameworks"},
            **{name: value for name, value in inputs._asdict().items() if name not in {"work", "note"}},
            note="; ".join(filter(None, [inputs.note, announced])),
            expected=expected,
            closed_form=closed_form,
            files=files,
            training=config.training(),
            roofline=roofline if compute.model == "roofline" else None,
            flow_names=config.network.flows,
            keeps_nodes=output.nodes == "all",
            checkpoint_s=config.engine.checkpoint,
            identity=identity,
            model_warnings=[*config.model_warnings(), *circles],
            warning=Effects(config).without().sentence(),
            warnings=[
                *config.model_warnings(graph.npus - len(work.memories)),
                *graph.warnings,
                *circles,
                *(text for file in filter(None, flow_files) for text in flow_lists.warnings(file)),
                *filter(None, [reading.remote_tensors(counts)]),
            ],
            without_effect=Effects(config, counts.times, graph, settings.faults).without(),
            if_no_time=reading.why_no_time(counts, work, compute.model, str(config.workload.traces or "")),
            without_faults=self._compared(config.without_faults()) if output.without_faults and config.faults else None,
            alone=[self._compared(alone) for alone in inputs.jobs_alone()] if output.alone else [],
        )

    def _compared(self, config: RunConfig) -> "functools.partial[RunPlan]":
        """Return a function that plans another run to compare with, of which results need nothing but its end."""
        return functools.partial(replace(self, config=config).plan, has_folder=False)


def _sample_ps(asked_ps: int | None, graph: Graph, settings: pdes.Settings) -> int:
    """Return the interval of samples of links in picoseconds, 0 = no samples; refuse less than a packet takes."""
    if asked_ps is None or not settings.fidelity.model.has_packets:
        return 0
    packet_bytes = settings.mtu_bytes + settings.header_bytes
    packet_ps = round(packet_bytes * PS_PER_BYTE_AT_1_BPS / int(graph.link_rate_bps.min()))
    if asked_ps < packet_ps:
        raise ConfigError(
            f"[output] sample: found {format_time(asked_ps)}; expected at least {format_time(packet_ps)}, "
            "which a packet takes on the slowest link"
        )
    return asked_ps


def _check_durations(longest_ps: int, settings: pdes.Settings) -> None:
    """Refuse slow-downs that make a node take longer than any run; longest_ps: longest time of a node at full pace."""
    slowdown = max([1.0, *(fault.slowdown for fault in settings.faults.npus)])
    slowdown *= max(settings.job_slowdowns, default=settings.compute_slowdown)
    if slowdown > 1 and longest_ps * slowdown > pdes.LONGEST_RUN_PS:
        raise ConfigError(
            f"compute_slowdown and slowdown of [[faults]] make a node of {format_time(longest_ps)} take {slowdown:g} "
            f"times as long; expected at most 26 days"
        )


def _return_freed_memory() -> None:
    """Let the C library give back memory that it keeps for later use, where it is glibc.

    Plans of collectives are made of many small objects. Freed, these leave holes in the heap, which arrays of the
    engine do not use: 230 MB of 1.4 GB when two jobs of 8,192 GPUs are set up.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

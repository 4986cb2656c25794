"""Results of a run in a folder: summary.json, tables, and partial results of a run that is not over."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nadi import __version__, pdes
from nadi.inputs.arrays import Int64, UInt64, arrow_numbers, arrow_texts, arrow_words, numpy_column
from nadi.insight import run_analysis
from nadi.insight.node_times import node_rows, npu_blocks
from nadi.insight.work_metrics import serving_document, step_document
from nadi.launching.checkpoints import CheckpointFolder
from nadi.launching.ranks import ALONE, RankGather, together
from nadi.pdes import Settings
from nadi.reports.staging import SUMMARY
from nadi.simulation import schemas
from nadi.simulation.closed_forms import UNKNOWN, ClosedForm, ideal_ps, sent_by_ports, shares_of, slowdown
from nadi.simulation.network_settings import settled_parameters
from nadi.simulation.run import FinishedRun
from nadi.workload import KINDS
from nadi.workload.node_kinds import COLLECTIVE, COMPUTE, MEMORY
from nadi.workload.program import divided

TABLES = tuple(schema.name for schema in schemas.OF_EVERY_RUN)
REPORT = "report.html"
# Files that a run may write; the first marks a complete folder. A run removes the page of an earlier run
RUN_FILES = (SUMMARY, *(schema.file for schema in schemas.OF_A_RUN), REPORT)
SUMMARY_KEY = "digest"  # Top-level key that identifies a summary.json of Nadi


def write_results(
    simulation: FinishedRun, analysis: run_analysis.RunAnalysis | None, folder: Path | None, ranks: RankGather = ALONE
) -> None:
    """Write all tables and the summary into a folder (see `staging`). All ranks call it; rank 0 writes.

    Partial results have no rows of trace nodes and messages, whose writing would take longer than a checkpoint. Rank 0
    has flows, links and counters of all ranks.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis; None on other ranks than 0.
        folder: Folder to write to; None on other ranks than 0.
        ranks: Exchange of values between ranks.
    """
    if folder:
        folder.mkdir(exist_ok=True)
    is_over = simulation.results.snapshot_ps is None
    if simulation.keeps_nodes and is_over:
        write_nodes(simulation, folder, ranks)
    if analysis and folder:
        if simulation.settings.record_flows and is_over:
            write_flows(simulation, folder)
        write_job_links(simulation, folder)
        write_analysis(simulation, analysis, folder)
        write_logs(simulation.results, folder)
    peaks = ranks.gather(simulation.peak_rss_bytes())
    if folder:
        text = json.dumps(summary(simulation, peaks, analysis), indent=2)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")


def summary(
    simulation: FinishedRun,
    peak_rss_of_ranks: Sequence[int] | None = None,
    analysis: run_analysis.RunAnalysis | None = None,
) -> dict[str, Any]:
    """Return the contents of summary.json: metrics of the run on rank 0 and the settled configuration.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        peak_rss_of_ranks: Peak memory of each rank in bytes; None for a run of this process alone.
        analysis: Result of the analysis; None = no analysis.
    """
    peaks = peak_rss_of_ranks or [simulation.peak_rss_bytes()]
    results, counters = simulation.results, simulation.results.counters
    model = simulation.settings.fidelity.model
    chosen = simulation.settings.congestion_control
    collectives = {kind: simulation.collectives.algorithm_of(kind) for kind in simulation.collectives.algorithm}
    found = simulation.results.settled | ({"collectives": collectives} if collectives else {})
    return {
        "version": __version__,
        "network": model.name,
        "switches": _switches(simulation.settings),
        "topology": simulation.graph.name,
        **{key: getattr(simulation.graph, key) for key in ("npus", "nodes", "links")},
        "finish_time_ps": results.finish_time_ps,
        **({"without_faults_ps": simulation.without_faults_ps} if simulation.without_faults_ps >= 0 else {}),
        **({"phase_reports_ps": list(simulation.phase_reports_ps)} if simulation.phase_reports_ps else {}),
        **counters,
        **_without_rows(simulation),
        "ranks": len(peaks),
        **{key: getattr(simulation.workers, key) for key in ("threads", "processes", "lps")},
        **{key: getattr(results, key) for key in ("wall_s", "setup_s", "first_event_s")},
        "packet_hops_per_s": results.simulated_hops / max(results.wall_s, 1e-9),
        **({"reuse": results.reuse} if any(results.reuse.values()) else {}),
        "peak_rss_bytes": sum(peaks),
        "digest": results.digest,
        "warnings": list(analysis.warnings) if analysis else [],
        "step": step_document(
            simulation, analysis.step_times if analysis else None, so_far=analysis.done_steps if analysis else None
        ),
        "error_bars": [bar.document() for bar in run_analysis.error_bars_of(simulation, analysis)],
        **({"partial": partial_document(simulation, analysis)} if analysis and results.snapshot_ps is not None else {}),
        **({"jobs": list(analysis.jobs)} if analysis and analysis.jobs else {}),
        **simulation.operators.document(),
        **({"serving": serving_document(analysis.serving)} if analysis and analysis.serving else {}),
        **({"ports": _ports(simulation)} if not model.has_links else {}),
        "settled": found | ({"congestion": settled_parameters(chosen)} if chosen.update else {}),
        "config": simulation.config.settled(),
        "named": sorted(simulation.config.not_derived),
        "files": [entry.document() for entry in simulation.files],
        "working_folder": str(Path.cwd()),
    }


def _switches(settings: Settings) -> str:
    """Return the queues of the switches in words."""
    if not settings.fidelity.model.has_packets:
        return "none"
    if settings.credits is not None:
        return "credits"
    return "output queues" if settings.switch is None else "shared buffers"


def _without_rows(simulation: FinishedRun) -> dict[str, int]:
    """Return how many messages have no row in flows.parquet, and their bytes; nothing where all have one."""
    results = simulation.results
    flows = results.counters["flows"] - len(results.flows["src"])
    if not flows or not simulation.settings.record_flows or results.snapshot_ps is not None:
        return {}
    size = results.counters["payload_bytes"] - int(results.flows["bytes"].sum())
    return {"flows_without_rows": flows, "bytes_without_rows": size}


def partial_document(simulation: FinishedRun, analysis: run_analysis.RunAnalysis) -> dict[str, Any]:
    """Return `partial` of summary.json, which only runs that are not over have; `nadi watch` shows it.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run (`RunAnalysis`).
    """
    times, found = analysis.npu_times, analysis.collectives
    whole_ps = (simulation.results.snapshot_ps or 1) * len(times.compute_ps)
    return {
        "simulated_ps": simulation.results.snapshot_ps,
        **({"steps_done": analysis.done_steps.steps, "steps": analysis.done_steps.of} if analysis.done_steps else {}),
        "compute_share": int(times.compute_ps.sum()) / whole_ps,
        "exposed_share": int(times.exposed_ps.sum()) / whole_ps,
        "collectives": [
            {
                "kind": name,
                "done": int((found.kind == kind).sum()),
                "mean_ps": float(found.time_ps[found.kind == kind].mean()),
            }
            for kind, name in enumerate(KINDS)
            if (found.kind == kind).any()
        ],
    }


def _ports(simulation: FinishedRun) -> dict[str, Any]:
    """Return the traffic of ports that the collectives of a run at closed forms imply."""
    found = sent_by_ports(simulation.graph, simulation.program, simulation.settings)
    return {"used": {name: of._asdict() for name, of in found.ports.items()}, "unused_switches": found.unused}


NODE_KINDS = ("noop", "compute", "memory", "send", "recv", "collective")
LANES = ("cpu", "compute", "memory", "remote")


def write_flows(simulation: FinishedRun, folder: Path) -> None:
    """Write a row per message into a folder.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        folder: Folder to write to.
    """
    flows = simulation.results.flows
    ideal = ideal_ps(simulation.graph, simulation.settings, flows, shares_of(divided(simulation.program), flows))
    unknown = ideal == UNKNOWN
    more = {"ideal_ps": arrow_numbers(ideal, unknown), "slowdown": arrow_numbers(slowdown(ideal, flows), unknown)}
    if (jobs := simulation.program.jobs) is not None:
        # messages between NPUs belong to the sender's job, others to their group's
        job = jobs.of_npus()[np.where(flows["group"] < 0, flows["src"], 0)]  # switches reduce for groups alone
        more["job"] = _job_words(simulation, np.where(flows["group"] < 0, job, jobs.of_groups()[flows["group"]]))
    pq.write_table(schemas.FLOWS.table({**flows, **more}), folder / schemas.FLOWS.file)


def write_job_links(simulation: FinishedRun, folder: Path) -> None:
    """Write the bytes of each job on each link that it uses, in runs of [[jobs]].

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        folder: Folder to write to.
    """
    sent = simulation.results.job_bytes
    job, link = np.nonzero(sent.T)
    if len(job):
        job_names = _job_words(simulation, np.where(job < sent.shape[1] - 1, job, -1))
        columns = {"job": job_names, "link": link, "tx_bytes": sent[link, job]}
        pq.write_table(schemas.JOB_LINKS.table(columns), folder / schemas.JOB_LINKS.file)


def _job_words(simulation: FinishedRun, jobs: NDArray[np.integer]) -> pa.DictionaryArray:
    """Return the names of jobs by number; null for -1, no job."""
    assert simulation.program.jobs is not None  # noqa: S101 - callers look
    return arrow_words(simulation.program.jobs.names, jobs)


def _jobs_of_npus(simulation: FinishedRun, npus: NDArray[np.integer]) -> dict[str, pa.Array]:
    """Return the column `job` of rows about NPUs; {} in runs without [[jobs]]."""
    jobs = simulation.program.jobs
    return {} if jobs is None else {"job": _job_words(simulation, jobs.of_npus()[npus])}


def write_analysis(simulation: FinishedRun, analysis: run_analysis.RunAnalysis, folder: Path) -> None:
    """Write links, collectives and NPUs into a folder.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run (`RunAnalysis`).
        folder: Folder to write to.
    """
    pq.write_table(_links_table(simulation, analysis), folder / schemas.LINKS.file)
    pq.write_table(_collectives(simulation, analysis), folder / schemas.COLLECTIVES.file)
    times, kept_rows = analysis.npu_times, simulation.results.kept_rows
    npu = np.arange(len(times.idle_ps))
    kept: dict[str, Any] = {"represented_by": kept_rows.like} if kept_rows else {}  # nodes of some NPUs represent all
    kept |= _jobs_of_npus(simulation, npu)
    pq.write_table(schemas.NPUS.table({"npu": npu, **times._asdict(), **kept}), folder / schemas.NPUS.file)
    if analysis.step_times is not None:
        steps = {f"{name}_ps": analysis.step_times[:, i] for i, name in enumerate(schemas.STEP_CATEGORIES)}
        steps |= _jobs_of_npus(simulation, npu)
        pq.write_table(schemas.STEPS.table({"npu": npu, **steps}), folder / schemas.STEPS.file)


def _collectives(simulation: FinishedRun, analysis: run_analysis.RunAnalysis) -> pa.Table:
    """Return the table of collectives, with their jobs in runs of [[jobs]]."""
    jobs, table = simulation.program.jobs, run_analysis.collectives_table(analysis)
    if jobs is None:
        return table
    words = _job_words(simulation, jobs.of_groups()[analysis.collectives.group])
    return schemas.COLLECTIVES.table({**{name: table[name] for name in table.column_names}, "job": words})


def write_logs(results: pdes.Results, folder: Path) -> None:
    """Write queues, marks, pauses and workers into a folder, each only if the run has recorded rows.

    Args:
        results: Results of the engine.
        folder: Folder to write to.
    """
    for schema in schemas.LOGS:
        columns = getattr(results, schema.name, None)
        if columns and len(next(iter(columns.values()))):
            pq.write_table(schema.table(columns), folder / schema.file)


def write_nodes(simulation: FinishedRun, folder: Path | None, ranks: RankGather) -> None:
    """Write a row per trace node of each NPU, in blocks of NPUs that do not depend on the number of ranks.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        folder: Folder to write to; None on other ranks than 0.
        ranks: Exchange of values between ranks.
    """
    names = _NodeNames(simulation)
    path = folder and folder / schemas.NODES.file
    columns = [field.name for field in schemas.NODES.fields if not field.where or simulation.jobs]
    with pq.ParquetWriter(path, schemas.NODES.arrow(columns)) if path else nullcontext() as writer:
        # blocks bound the memory; all ranks send their part of each
        for npus in npu_blocks(_rows_of_npu(simulation, ranks)):
            parts = ranks.gather(_nodes_table(simulation, names, npus))
            if writer and parts:
                writer.write_table(_by_npu(parts))


def _rows_of_npu(simulation: FinishedRun, ranks: RankGather) -> Int64:
    """Return int64[npus]: number of trace nodes of each NPU, over all ranks."""
    own = np.flatnonzero(simulation.program.trace_of_npu >= 0)
    rows_of_npu = np.zeros(simulation.program.npus, np.int64)
    for npus, rows in ranks.exchange((own, np.diff(simulation.results.npu_node_ptr)[own])):
        rows_of_npu[npus] = rows
    return rows_of_npu


def _nodes_table(simulation: FinishedRun, names: "_NodeNames", npus: range) -> pa.Table:
    """Return the trace nodes of a block's NPUs on this rank."""
    program, results = simulation.program, simulation.results
    rows = node_rows(program, results.npu_node_ptr, npus)
    kind = program.node_kind[rows.at]
    group = np.full(len(rows.at), -1, np.int32)
    is_collective = kind == COLLECTIVE
    npu, at = rows.npu[is_collective], rows.at[is_collective]
    group[is_collective] = program.slot_group[program.slot_ptr[npu] + program.node_group[at]]
    columns = {
        "npu": rows.npu.astype(np.int32),
        "row": rows.row.astype(np.int32),
        "node_id": names.ids(rows.npu, rows.row),
        "name": names.names(rows.npu, rows.row),
        "kind": arrow_words(NODE_KINDS, kind),
        "lane": arrow_words(LANES, np.where((kind == COMPUTE) | (kind == MEMORY), program.node_lane[rows.at], -1)),
        "group": arrow_numbers(group, group < 0),
        "bytes": program.node_bytes[rows.at],
        "start_ps": results.node_start_ps[rows.result],
        "finish_ps": results.node_finish_ps[rows.result],
        **_jobs_of_npus(simulation, rows.npu),
    }
    return schemas.NODES.table(columns)


def _by_npu(parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate the tables of several ranks, sorted by NPU."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    return table.take(arrow_numbers(np.argsort(numpy_column(table["npu"]), kind="stable")))


class _NodeNames:
    """Ids and names of trace nodes; the names of all traces share one dictionary."""

    def __init__(self, simulation: FinishedRun) -> None:
        traces = simulation.traces
        self._ptr = np.cumsum([0, *(len(trace) for trace in traces)])
        self._trace_of_npu = simulation.trace_of_npu
        self._ids = np.concatenate([np.zeros(0, np.uint64), *(trace.node_id for trace in traces)])
        index: dict[str, int] = {}  # of each name, in the order of the first nodes that have them
        rows = (index.setdefault(name, len(index)) for trace in traces for name in trace.names)
        self._index = np.fromiter(rows, np.int32, self._ptr[-1])
        self._words = arrow_texts(index)

    def ids(self, npu: Int64, row: Int64) -> UInt64:
        return self._ids[self._ptr[self._trace_of_npu[npu]] + row]

    def names(self, npu: Int64, row: Int64) -> pa.DictionaryArray:
        index = self._index[self._ptr[self._trace_of_npu[npu]] + row]
        return pa.DictionaryArray.from_arrays(arrow_numbers(index), self._words)


def _links_table(simulation: FinishedRun, analysis: run_analysis.RunAnalysis) -> pa.Table:
    """Return the table of links with their traffic."""
    graph = simulation.graph
    names = tuple(graph.node_name(node) for node in range(graph.nodes))
    columns: dict[str, Any] = {
        "link": np.arange(graph.links),
        "rate_bps": graph.link_rate_bps,
        "delay_ps": graph.link_delay_ps,
    }
    columns |= {"src": arrow_words(names, graph.link_src), "dst": arrow_words(names, graph.link_dst)}
    columns |= {**simulation.results.links, "utilisation": analysis.utilisation}
    return schemas.LINKS.table(columns)


# Maximum share of the wall time that partial results take: checkpoints that follow too soon have none
MAX_SHARE = 0.01


class PartialResults:
    """Writer of the results so far of a run into the folder of its checkpoints."""

    def __init__(self, checkpoints: CheckpointFolder, say: Callable[[str], None]) -> None:
        """Take where results go; say: function that prints one line."""
        self._checkpoints, self._say = checkpoints, say
        self.closed_forms: dict[
            run_analysis.ClosedFormKey, ClosedForm
        ] = {}  # those of this rank, for later analyses of this run
        self._due_s = 0.0  # time of the monotonic clock from which results may be written

    def write(self, simulation: FinishedRun, ranks: RankGather) -> None:
        """Write the results of a run that is not over; all ranks call this. A failure only prints a line."""
        begun_s = time.monotonic()
        if not ranks.exchange(begun_s >= self._due_s)[0]:
            return
        try:
            with together(ranks):
                parts = ranks.gather(run_analysis.analyse_rank(simulation, ranks.exchange, self.closed_forms))
                analysis = run_analysis.merge_ranks(simulation, parts) if parts is not None else None
                write_results(simulation, analysis, self._checkpoints.new_partial() if analysis else None, ranks)
                if analysis:
                    self._checkpoints.keep_partial()
        except Exception as error:  # noqa: BLE001 - a run of hours does not end because of results that it writes again
            said = f"no partial results could be written: {error}"
        else:
            said = f"partial results: written in {time.monotonic() - begun_s:.1f} s"
        now_s = time.monotonic()
        # so that writing takes at most MAX_SHARE of the time
        self._due_s = now_s + (now_s - begun_s) / MAX_SHARE
        if ranks.rank == 0:
            self._say(said)

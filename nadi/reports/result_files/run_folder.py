"""Files of a run: summary.json and Parquet tables, published by `nadi.reports.result_files.staging`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nadi import __version__
from nadi.insight.run_analysis import RunAnalysis
from nadi.insight.work_metrics import serving_document, step_document
from nadi.launching.world import ALONE, RankGather
from nadi.pdes import Settings
from nadi.simulation import schemas
from nadi.simulation.closed_forms.sent_bytes import sent_by_ports
from nadi.simulation.fidelities.fabric_settings import settled_parameters
from nadi.simulation.run_plan import FinishedRun
from nadi.workload import KINDS

SUMMARY = "summary.json"
TABLES = tuple(schema.name for schema in schemas.OF_EVERY_RUN)
REPORT = "report.html"
# Files that a run may write; the first marks a complete folder. A run removes the page of an earlier run
RUN_FILES = (SUMMARY, *(schema.file for schema in schemas.OF_A_RUN), REPORT)
SUMMARY_KEY = "digest"  # Top-level key that identifies a summary.json of Nadi


def write_results(
    simulation: FinishedRun, findings: RunAnalysis | None, folder: Path | None, ranks: RankGather = ALONE
) -> None:
    """Write all tables and the summary into a folder (see `staging`). All ranks call it; rank 0 writes.

    Partial results have no rows of trace nodes and messages, whose writing would take longer than a checkpoint. Rank 0
    has flows, links and counters of all ranks.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        findings: Result of the analysis; None on other ranks than 0.
        folder: Folder to write to; None on other ranks than 0.
        ranks: Exchange of values between ranks.
    """
    from nadi.reports.result_files import run_tables

    if folder:
        folder.mkdir(exist_ok=True)
    is_over = simulation.results.cut_ps is None
    if simulation.keeps_nodes and is_over:
        run_tables.write_nodes(simulation, folder, ranks)
    if findings and folder:
        if simulation.settings.record_flows and is_over:
            run_tables.write_flows(simulation, folder)
        run_tables.write_job_links(simulation, folder)
        run_tables.write_findings(simulation, findings, folder)
        run_tables.write_logs(simulation.results, folder)
    peaks = ranks.gather(simulation.peak_rss_bytes())
    if folder:
        text = json.dumps(summary(simulation, peaks, findings), indent=2)
        (folder / SUMMARY).write_text(text + "\n", encoding="utf-8")


def summary(
    simulation: FinishedRun, peak_rss_of_ranks: Sequence[int] | None = None, findings: RunAnalysis | None = None
) -> dict[str, Any]:
    """Return the contents of summary.json: metrics of the run on rank 0 and the settled configuration.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        peak_rss_of_ranks: Peak memory of each rank in bytes; None for a run of this process alone.
        findings: Result of the analysis; None = no analysis.
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
        **counters,
        **_without_rows(simulation),
        "ranks": len(peaks),
        **{key: getattr(simulation.workers, key) for key in ("threads", "processes", "lps")},
        **{key: getattr(results, key) for key in ("wall_s", "setup_s", "first_event_s")},
        "packet_hops_per_s": results.simulated_hops / max(results.wall_s, 1e-9),
        **({"reuse": results.reuse} if any(results.reuse.values()) else {}),
        "peak_rss_bytes": sum(peaks),
        "digest": results.digest,
        "warnings": list(findings.warnings) if findings else [],
        "step": step_document(
            simulation, findings.step_times if findings else None, so_far=findings.done_steps if findings else None
        ),
        **({"partial": partial_document(simulation, findings)} if findings and results.cut_ps is not None else {}),
        **({"jobs": list(findings.jobs)} if findings and findings.jobs else {}),
        **simulation.operators.document(),
        **({"serving": serving_document(findings.serving)} if findings and findings.serving else {}),
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
    return "output queues" if settings.switch is None else "shared buffers"


def _without_rows(simulation: FinishedRun) -> dict[str, int]:
    """Return how many messages have no row in flows.parquet, and their bytes; nothing where all have one."""
    results = simulation.results
    flows = results.counters["flows"] - len(results.flows["src"])
    if not flows or not simulation.settings.record_flows or results.cut_ps is not None:
        return {}
    size = results.counters["payload_bytes"] - int(results.flows["bytes"].sum())
    return {"flows_without_rows": flows, "bytes_without_rows": size}


def partial_document(simulation: FinishedRun, findings: RunAnalysis) -> dict[str, Any]:
    """Return `partial` of summary.json, which only runs that are not over have; `nadi watch` shows it.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        findings: Result of the analysis of the run (`Findings`).
    """
    times, found = findings.npu_times, findings.collectives
    whole_ps = (simulation.results.cut_ps or 1) * len(times.compute_ps)
    return {
        "simulated_ps": simulation.results.cut_ps,
        **({"steps_done": findings.done_steps.steps, "steps": findings.done_steps.of} if findings.done_steps else {}),
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

"""The report of a run: one page with a section per topic, from the folder of its results."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nadi.errors import ConfigError
from nadi.inputs.arrays import arrow_numbers, numpy_column
from nadi.inputs.units import PS_PER_S
from nadi.insight.explanation import CyclicError, explain
from nadi.insight.metrics import worker_balance
from nadi.insight.runs import Run, energy_of
from nadi.reports.pages.charts import bar_chart, empty_figure, series_style
from nadi.reports.pages.fabric import fabric_kind, fabric_section
from nadi.reports.pages.network import network_section
from nadi.reports.pages.page import (
    Fact,
    Facts,
    Heading,
    Listing,
    Page,
    PageSection,
    Paragraph,
    Part,
    Plot,
    Table,
    from_terminal,
)
from nadi.reports.pages.report_times import collectives_section, step_section, timeline_section
from nadi.reports.text.energy import energy_facts, energy_jobs_table, energy_notes, energy_parts_table, joules_text
from nadi.reports.text.run import COLUMNS, MEANINGS, jobs_table, path_table, serving_table, what_if_table
from nadi.simulation.schemas import NODES
from nadi.terminal import amount_text, time_text, time_unit


def report(run: Run, progress: Callable[[str], None] = lambda _text: None) -> Page:
    """Return the page of a run; `progress` is called with the name of each section before it is made."""
    summary = run.summary
    work = summary.get("config", {}).get("workload", {})
    npus, topology = f"{summary.get('npus', 0):,} NPUs", str(summary.get("topology", ""))
    what = f"{work['model']} as {work['plan']}" if work.get("model") else npus
    sections: list[PageSection] = []
    makers: dict[str, Callable[[Run], PageSection | None]] = {
        "overview": overview_section,
        "jobs": jobs_section,
        "serving": serving_section,
        "step": step_section,
        "explanation": explanation_section,
        "timeline": timeline_section,
        "collectives": collectives_section,
        "fabric": fabric_section,
        "network": network_section,
        "energy": energy_section,
        "engine": engine_section,
        "settings": settings_section,
    }
    for name, section_of in makers.items():
        progress(f"section {name}")
        section = section_of(run)
        sections += [section] if section else []
    return Page(
        f"{what} on {fabric_kind(topology)}: {_main_result(run)}",
        f"{npus} on {topology}, simulated by Nadi {summary.get('version', '')}. "
        f"Click an underlined term for its explanation.",
        sections,
    ).with_error_bars(summary.get("error_bars", ()))


def _main_result(run: Run) -> str:
    """Return the main result of a run: the times of requests if it serves a model, else its time."""
    requests = run.summary.get("serving", {})
    times = [f"{name.upper()} {time_text(requests[name]['p50_ps'])}" for name in ("ttft", "tpot") if name in requests]
    return f"median {', '.join(times)}" if times else time_text(run.finish_time_ps)


_FLOPS_PER_PFLOP = 1e15
_EVENTS = {
    "dropped_packets": ("packets dropped", "Packets lost at a full queue, or by a failed link."),
    "marked_packets": ("packets marked", "Packets that ECN marked, because the queue was above its threshold."),
    "pause_frames": ("pauses", "PFC pauses: a switch stopped the sender of a link, because its buffer was filling."),
    "trimmed_packets": ("packets trimmed", "Packets cut to their headers, because the queue was full."),
    "retransmitted_packets": ("packets retransmitted", "Packets sent again after a loss, a timeout, or reordering."),
    "timeouts": ("timeouts", "Retransmission timeouts: a sender received no acknowledgement in time."),
    "congestion_notifications": ("congestion notifications", "CNPs that receivers sent to DCQCN senders."),
}


def overview_section(run: Run) -> PageSection:
    """Return the section about the results: time, throughput, traffic, and the counters of network events.

    Args:
        run: Finished run that the page shows.
    """
    summary = run.summary
    parts: list[Part] = [Paragraph(warning, is_warning=True) for warning in run.warnings]
    facts = [Fact("simulated time", time_text(run.finish_time_ps), "Time from the start to the end of the last NPU.")]
    facts += _step(summary.get("step", {}), run.finish_time_ps)
    switches = summary.get("switches", "none")
    network = str(summary.get("network", "")) + (f", {switches}" if switches != "none" else "")
    facts += [
        Fact("NPUs", f"{summary.get('npus', 0):,}", "GPUs or other accelerators, each with its own trace."),
        Fact("network", network, "How the network is modelled: docs/explanation/fidelity.md."),
    ]
    if run.network.has_links:
        facts += [
            Fact("messages", f"{summary.get('flows', 0):,}", "Sends of the traces, and messages of collectives."),
            Fact("payload", amount_text(summary.get("payload_bytes", 0)), "Bytes of messages, without headers."),
        ]
    if summary.get("operators"):
        tables = summary.get("operator_tables", "")
        counts = ", ".join(f"{count:,} {source}" for source, count in summary["operators"].items() if count)
        why = "Distinct operators of the traces by source of their times: docs/explanation/compute.md."
        facts.append(Fact("operators", counts, f"{why} NVIDIA's tables: {tables}." if tables else why))
    if summary.get("packets"):
        facts.append(Fact("packets", f"{summary['packets']:,}", "Data and acknowledgements."))
    facts += [Fact(name, f"{summary[key]:,}", why) for key, (name, why) in _EVENTS.items() if summary.get(key)]
    facts.append(Fact("digest", run.digest[:12], "Digest of all events; runs with equal digests are identical."))
    return PageSection("overview", "Overview", "Main results of the run.", [*parts, Facts(facts)])


def _step(step_summary: dict[str, Any], finish_ps: int) -> list[Fact]:
    """Return the facts of a model's training step."""
    if "tokens_per_s" not in step_summary:
        return []
    step_s = step_summary.get("time_ps", finish_ps) / PS_PER_S
    rate = step_summary["model_flops"] / step_s / _FLOPS_PER_PFLOP
    facts = [
        Fact("step time", time_text(step_summary["time_ps"]), "Time of one optimizer step."),
        Fact("tokens", f"{step_summary['tokens_per_s']:,.0f} /s", "Global batch times sequence over step time."),
        Fact("model FLOP", f"{rate:,.2f} PFLOP/s", "FLOP of the model, causal attention counted half, over step time."),
    ]
    if "mfu" in step_summary:
        why = "Model FLOP utilisation: the model's FLOP over the GPUs' peak, causal attention counted half."
        facts.append(Fact("MFU", f"{step_summary['mfu']:.1%}", why))
    if "mfu_all_pairs" in step_summary:
        why = "MFU with all pairs of query and key, as in PaLM (arXiv 2204.02311, appendix B) and Megatron-LM."
        facts.append(Fact("MFU, all pairs", f"{step_summary['mfu_all_pairs']:.1%}", why))
    return facts


MAX_JOBS = 1000  # rows of the table
_JOBS_WHY = {
    "start": "When all its NPUs start.",
    "time": "From its start to its end.",
    "alone": "Time of the job without the others, on the same NPUs.",
    "slow-down": "Time over time alone.",
    "step": "Time of one optimizer step.",
    "MFU": "Model FLOP utilisation: the model's FLOP over the GPUs' peak, causal attention counted half.",
    "shares links with": "Other jobs that use the same links at the same time, with the bytes that these sent there.",
    "digest": "Hash of all that the job did, by its ranks and from its start; equal digests, equal jobs.",
}


def jobs_section(run: Run) -> PageSection | None:
    """Return the section about jobs; None in a run without [[jobs]]."""
    jobs = run.summary.get("jobs")
    if not jobs:
        return None
    parts: list[Part] = [from_terminal(jobs_table(jobs, MAX_JOBS), why=_JOBS_WHY)]
    shared = [
        [
            job["name"],
            each["job"],
            f"{each['links']:,}",
            amount_text(each["bytes"]),
            amount_text(each["other_bytes"]),
            each["link_name"],
        ]
        for job in jobs
        for each in job["shares"]
    ]
    if shared:
        headings = [
            Heading("job", "", is_text=True),
            Heading("other job", "A job that uses the same links at the same time.", is_text=True),
            Heading("links", "Number of links on which each of both sent 1 % of the bytes or more."),
            Heading("own bytes", "Bytes that the job sent over these links."),
            Heading("other bytes", "Bytes that the other job sent over them: what the job waits for."),
            Heading("most at", "Link on which the smaller of both sent most.", is_text=True),
        ]
        parts.append(Table("links that jobs share", headings, shared, ""))
    return PageSection("jobs", "Jobs", "Jobs that share the fabric, and what each lost to the others.", parts)


def serving_section(run: Run) -> PageSection | None:
    """Return the section about serving, or None where nothing was served.

    Args:
        run: Finished run that the page shows.
    """
    serving = run.summary.get("serving")
    if not serving:
        return None
    rate = f"{serving['tokens_per_s']:,.0f} tokens/s"
    facts = [
        Fact("requests", f"{serving['requests']:,}", "Requests that got at least one token."),
        Fact("tokens", f"{serving['tokens']:,}", "Output tokens of all requests."),
        Fact("throughput", rate, "Output tokens, from the first arrival to the end."),
    ]
    why = {name: f"{name[1:]} % of the requests took no longer." for name in COLUMNS}
    why |= {"time": "Measured time.", "mean": "Mean over the requests.", "maximum": "The slowest request."}
    plots = [_serving_plot(name, serving[name]) for name in MEANINGS if name in serving]
    parts: list[Part] = [Facts(facts), from_terminal(serving_table(serving), why=why), *plots]
    lead = "How long requests waited for their first and for each further token."
    return PageSection("serving", "Serving", lead, parts)


def _serving_plot(metric: str, times: dict[str, Any]) -> Plot:
    """Return the cumulative distribution of one kind of time of all requests."""
    quantiles_ps = np.array(times["quantiles_ps"])
    unit = time_unit([times["p50_ps"]])
    share = np.linspace(0, 100, len(quantiles_ps))
    drawn = empty_figure(f"{MEANINGS[metric][0]}, {unit.name}", "requests that took no longer, %")
    drawn.add_scatter(x=quantiles_ps / unit.ps, y=share, mode="lines", line={"color": series_style(0).colour})
    drawn.update_xaxes(rangemode="tozero")
    drawn.update_yaxes(range=[0, 100])
    known = {share: times[key] for share, key in (("half", "p50_ps"), ("99 %", "p99_ps")) if times[key] is not None}
    most = ", ".join(f"{share} take at most {time_ps / unit.ps:,.4g} {unit.name}" for share, time_ps in known.items())
    description = f"Cumulative distribution: {MEANINGS[metric][1]}; {most}."
    return Plot(f"{metric.upper()}: {MEANINGS[metric][0]}, cumulative distribution", drawn, description)


MAX_PIECES = 15
# Number of trace nodes above which only `nadi explain` analyses the path, because a page is made in seconds
MAX_NODES = 1 << 21
_PATH_WHY = {"activity": "Activity of these pieces of the path.", "share": "Share of the run."}
_CHANGE_WHY = "One component is faster, all others are unchanged; among links, the eight busiest tiers are evaluated."
_PREDICTION = "Predictions neglect changes of overlap and of order: docs/explanation/explain.md."


def explanation_section(run: Run) -> PageSection:
    """Return the section about the critical path: its composition, and the changes that would shorten the run."""
    lead = "The critical path: consecutive pieces without gaps from begin to end of the run, across NPUs."
    return PageSection("why", "Why", lead, _explanation_parts(run))


def _explanation_parts(run: Run) -> list[Part]:
    """Return tables of the critical path and of what-ifs, or the reason why there are none."""
    if not run.has(NODES):
        return [Paragraph('The run kept no trace nodes ([output] nodes = "none"), so its critical path is not known.')]
    if len(run.nodes) > MAX_NODES:
        reason = f"The critical path of a run of {len(run.nodes):,} trace nodes is not on this page"
        return [Paragraph(f"{reason}: nadi explain {run.folder} shows it.")]
    try:
        document = explain(run)
    except (ValueError, CyclicError) as error:
        if not isinstance(error, CyclicError) and getattr(error, "exit_code", None) != ConfigError.exit_code:
            raise
        return [Paragraph(f"The run cannot be explained: {error}")]
    note = f"{document['pieces']:,} pieces on {len(document['npus']):,} NPUs."
    if document["stand_for_others"]:
        note += " Each of these represents all NPUs with the same nodes at the same times."
    return [
        from_terminal(path_table(document, MAX_PIECES), note, _PATH_WHY),
        from_terminal(what_if_table(document), _PREDICTION, {"change": _CHANGE_WHY}),
    ]


_ENERGY_WHY = {
    "energy": "Energy of the machines and of the data centre's overhead during the run.",
    "mean power": "Energy over the time of the run.",
    "cost": "GPU hours at their rent; for owned GPUs, their price over their working life, plus electricity.",
    "electricity": "Cost of the energy; for rented GPUs, part of the rent.",
    "network": "Purchase price of the ports that the run is charged for, spread over their working life.",
    "per step": "Energy and cost of one optimizer step.",
    "per million tokens": "Energy and cost of a million training tokens.",
}


def energy_section(run: Run) -> PageSection | None:
    """Return the section about energy and cost: facts, a chart and a table. None if the NPUs only send messages.

    Args:
        run: Finished run that the page shows.
    """
    if run.has_only_messages:
        return None
    document = energy_of(run).document()
    lead = "Powers and prices come from a small table that you can replace: docs/explanation/energy.md."
    parts: list[Part] = [Facts([Fact(name, value, _ENERGY_WHY[name]) for name, value in energy_facts(document)])]
    rows = document["parts"]
    energies = {"static": [row["static_J"] for row in rows], "for bits": [row["per_bit_J"] for row in rows]}
    drawn = bar_chart([row["part"] for row in rows], energies, ("#3d8fd1", "#ea7200"), "J")
    largest, total = max(rows, key=lambda row: float(row["J"])), joules_text(document["energy_J"])
    description = f"{largest['part']} has the largest share, {largest['share']:.1%} of {total}."
    parts += [
        Plot("energy by part (J)", drawn, description, 140 + 24 * len(rows)),
        from_terminal(energy_parts_table(document)),
    ]
    parts += [from_terminal(energy_jobs_table(document))] if document.get("jobs") else []
    parts += [Paragraph(note) for note in energy_notes(document)]
    used = "\n".join(_energy_lines(document["table"]))
    return PageSection("energy", "Energy and cost", lead, [*parts, Listing("powers and prices", used)])


def _energy_lines(tree: dict[str, Any], path: str = "") -> list[str]:
    """Return a line per value of the table, with its source if it has one."""
    sources = tree.get("sources", {})
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict) and key != "sources":
            lines += _energy_lines(value | {"sources": sources}, f"{path}{key}.")
        elif key != "sources":
            source = sources.get(f"{path}{key}")
            lines.append(f"{path}{key} = {value}" + (f"  # {source}" if source else ""))
    return lines


MAX_WORKERS = 32  # Number of workers that are shown


def _reuse(counts: Mapping[str, int]) -> list[Fact]:
    """Return facts about collectives that were replayed and periods that recurred; none without any."""
    if not counts:
        return []
    replayed, simulated = counts["episodes_replayed"], counts["episodes_simulated"]
    return [
        Fact("replayed", f"{counts['replayed_hops']:,}", "Packet-hops of collectives that were simulated once before."),
        Fact("messages", f"{counts['replayed_messages']:,}", "Messages of replayed collectives."),
        Fact("replays", f"{replayed:,}", "Number of times that collectives of an NVLink domain were replayed."),
        Fact(
            "disturbed",
            f"{counts['episodes_disturbed']:,}",
            "Those that other packets met, and that went on as packets.",
        ),
        Fact("episodes", f"{simulated:,}", "Different collectives of NVLink domains that were simulated."),
        Fact("repeated", f"{counts['repeated_hops']:,}", "Packet-hops of periods that repeat an earlier one exactly."),
        Fact("periods", f"{counts['repeated_periods']:,}", "Number of these periods, such as micro-batches."),
        Fact("fast-forward", f"{counts['near_periods']:,}", "Those of them that are only nearly like simulated ones."),
        Fact("records", amount_text(counts["record_bytes"]), "Memory of the recorded collectives."),
    ]


def engine_section(run: Run) -> PageSection:
    """Return the section about the simulation's speed: rates, workers, windows and memory.

    Args:
        run: Finished run that the page shows.
    """
    summary = run.summary
    wall_s = summary.get("wall_s", 0.0)
    facts = [
        Fact("wall time", f"{wall_s:,.3g} s", "Time of the simulation, without reading traces and building fabrics."),
        Fact("setup time", f"{summary.get('setup_s', 0.0):,.3g} s", "Wall time of setup and compilation of kernels."),
        Fact("packet-hops", f"{summary.get('packet_hops', 0):,}", "Number of links that packets crossed, summed."),
        *_reuse(summary.get("reuse", {})),
        Fact("rate", f"{summary.get('packet_hops_per_s', 0.0) / 1e6:,.2f} M packet-hops/s", "Rate over all workers."),
        Fact("events", f"{summary.get('events', 0):,}", "Processed arrivals, departures and timers."),
        Fact("workers", _workers(summary), "Ranks are MPI processes; results are the same for any number."),
        Fact("LPs", f"{summary.get('lps', 1):,}", "Logical processes: parts of the fabric with windows of their own."),
        Fact("memory", amount_text(summary.get("peak_rss_bytes", 0)), "Peak memory of all processes, summed."),
    ]
    if "windows" in summary:
        windows = summary["windows"]
        facts.append(Fact("windows", f"{windows:,}", "Intervals of simulated time between two exchanges of the LPs."))
        if windows:
            why = "With few events per window, LPs wait for each other most of the time."
            facts.append(Fact("events per window", f"{summary.get('events', 0) / windows:,.1f}", why))
    workers, parts = run.workers, list[Part]()
    if workers is not None and len(workers):
        found = worker_balance(run)
        even = "Longest working time of a worker over the mean of all workers: 1 is even."
        facts.append(Fact("imbalance", f"{found.imbalance:.2f}", even))
        share = "Share of the workers' wall time spent waiting for each other."
        facts.append(Fact("share of waiting", f"{found.waiting:.1%}", share))
        parts = [_workers_plot(workers), _workers_table(workers)]
    lead = "Speed of the simulation itself, not of the simulated system."
    return PageSection("engine", "Simulation performance", lead, [Facts(facts), *parts])


def _workers_plot(workers: pa.Table) -> Plot:
    """Return a bar per worker; of many workers those with the longest and the shortest working times."""
    shown = _shown(workers)
    names = [f"worker {number}" for number in shown["worker"].to_pylist()]
    times_s = {"working": numpy_column(shown["working_s"]), "waiting": numpy_column(shown["waiting_s"])}
    drawn = bar_chart(names, times_s, ("#1f77b4", "#ea7200"), "s")
    working = numpy_column(workers["working_s"])
    description = f"Workers worked for {working.min():,.3g} s to {working.max():,.3g} s of wall time. "
    description += "In each window all wait for the worker with most events; nadi partition shows the nodes of each."
    if len(shown) < len(workers):
        description += f" {len(shown)} of {len(workers):,} are shown, with the longest and the shortest working times."
    return Plot("wall time of the workers (s)", drawn, description, 130 + 24 * len(shown))


def _workers_table(workers: pa.Table) -> Table:
    """Return a row per worker; of many workers those with the longest and the shortest working times."""
    names = ("worker", "rank", "working (s)", "waiting for others (s)", "share waiting", "packet-hops", "events")
    rows = []
    for row in _shown(workers).to_pylist():
        whole_s = row["working_s"] + row["waiting_s"]
        share = f"{row['waiting_s'] / whole_s if whole_s else 0:.1%}"
        times = f"{row['working_s']:,.3f}", f"{row['waiting_s']:,.3f}", share
        rows.append([str(row["worker"]), str(row["rank"]), *times, f"{row['packet_hops']:,}", f"{row['events']:,}"])
    note = f"All {len(workers):,} are in workers.parquet."
    return Table("the workers", [Heading(name) for name in names], rows, note)


def _shown(workers: pa.Table) -> pa.Table:
    """Return MAX_WORKERS workers, those with the longest and the shortest working times."""
    if len(workers) <= MAX_WORKERS:
        return workers
    order = np.argsort(numpy_column(workers["working_s"]), kind="stable")
    rows = np.sort(np.concatenate([order[: MAX_WORKERS // 2], order[-MAX_WORKERS // 2 :]]))
    return workers.take(arrow_numbers(rows))


def _workers(summary: dict[str, Any]) -> str:
    """Return the numbers of ranks, threads and processes in words."""
    parts = [
        f"{summary[key]} {name if summary[key] > 1 else name.removesuffix('s')}"
        for key, name in (("ranks", "ranks"), ("threads", "threads"))
        if summary.get(key)
    ]
    processes = summary.get("processes", 1)
    return ", ".join(parts) + (f", {processes} processes" if processes > 1 else "")


def settings_section(run: Run) -> PageSection:
    """Return the section about settings: the settled configuration, and the values derived from the fabric.

    Args:
        run: Finished run that the page shows.
    """
    parts: list[Part] = []
    for title, key in (("configuration", "config"), ("settled from fabric and traces", "settled")):
        if run.summary.get(key):
            parts.append(Listing(title, json.dumps(run.summary[key], indent=2, ensure_ascii=False)))
    parts.append(Listing("folders", f"{run.folder.absolute()}\nrun from {run.summary.get('working_folder', '?')}"))
    lead = "Every key of the run file with its value; docs/reference/run-file.md explains them."
    return PageSection("settings", "Settings", lead, parts)

"""Text of runs: the report of `nadi run`, the table of jobs, and the explanation of `nadi explain`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from nadi import terminal
from nadi.inputs.arrays import numpy_column
from nadi.inputs.units import PS_PER_S
from nadi.insight.node_times import slowest_collectives
from nadi.insight.questions import error_bars_of
from nadi.insight.run_analysis import RunAnalysis, collectives_table
from nadi.insight.work_metrics import PERCENTILES, rows_of_busy_npus, serving_document, throughput
from nadi.pdes import Results
from nadi.reports.text.comparison import shares_text
from nadi.reports.text.network import WHOLE, link_tables, note_too_few
from nadi.simulation.run import FinishedRun
from nadi.simulation.schemas import COMMUNICATION_AXES, STEP_CATEGORIES
from nadi.terminal import FittedTable, in_unit, name_column, text_column, time_text, time_unit
from nadi.topologies import NVSWITCH
from nadi.workload.collectives import ON_NVSWITCHES, UNEVEN
from nadi.workload.collectives.nccl.generations import AUTO, generation_of
from nadi.workload.compute import SOURCES

if TYPE_CHECKING:
    import pyarrow as pa


MAX_NPUS = 8
MAX_COLLECTIVES = 20
MAX_FAULTS = 3
MEANINGS = {
    "ttft": ("time to first token", "from the arrival of a request until its first token, queueing included"),
    "tpot": ("time per output token", "mean time of the tokens of a request after its first"),
}
COLUMNS = ("mean", *(f"p{percent}" for percent in PERCENTILES), "maximum")


def print_report(simulation: FinishedRun, analysis: RunAnalysis, out: Path | None, took_s: float) -> None:
    """Print times, collectives, busiest links, and the folder of tables, if kept.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run (`RunAnalysis`).
        out: Folder of the results; None = they are not kept.
        took_s: Seconds since the command began.
    """
    terminal.console().print(run_report(simulation, analysis, took_s))
    terminal.say(f"results: {out}" if out else "results are not kept: no --out DIR and no [output] dir")


def run_report(simulation: FinishedRun, analysis: RunAnalysis, took_s: float) -> RenderableType:
    """Return the report as something that a rich Console prints.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run (`RunAnalysis`).
        took_s: Seconds since the command began.
    """
    parts: list[RenderableType] = [_headline(simulation, analysis, took_s)]
    parts += [Text(f"warning: {warning}", style="bold") for warning in analysis.warnings]
    has_work = not _has_only_messages(analysis)
    parts += [npu_table(simulation, analysis)] if has_work else []
    step, by_axis = step_line(simulation), step_table(analysis) if has_work else None
    parts += [Text(step, style="bold")] if step else []
    parts += [Text(bar.text()) for bar in error_bars_of(simulation, analysis)]
    parts += [jobs_table(analysis.jobs)] if analysis.jobs else []
    parts += [serving_table(serving_document(analysis.serving))] if analysis.serving else []
    parts += [by_axis] if by_axis else []
    if len(analysis.collectives.group):
        parts.append(collective_table(collectives_table(analysis), MAX_COLLECTIVES))
    parts += link_tables(simulation, analysis.utilisation)
    return Group(*parts)


def npu_table(simulation: FinishedRun, analysis: RunAnalysis) -> FittedTable:
    """Return the time of each NPU by kind; for many NPUs minimum, median and maximum.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
        analysis: Result of the analysis of the run (`RunAnalysis`).
    """
    times = analysis.npu_times
    columns = (times.compute_ps, times.cpu_ps, times.memory_ps, times.communication_ps, times.exposed_ps, times.idle_ps)
    npus = simulation.program.npus
    if npus <= MAX_NPUS:
        rows = [(str(npu), [float(column[npu]) for column in columns]) for npu in range(npus)]
    else:
        picks = (("min", np.min), ("median", np.median), ("max", np.max))
        rows = [(f"{name} of {npus}", [float(pick(column)) for column in columns]) for name, pick in picks]
    unit = time_unit(time_ps for _, row in rows for time_ps in row)
    kinds = "compute", ("cpu", 3), ("memory", 4), ("communication", 1), "exposed", ("idle", 2)
    title = f"time of each NPU ({unit.name})"
    table = FittedTable(title, name_column("npu"), *kinds, full_output_option=WHOLE)
    for name, row in rows:
        table.add_row(name, *(in_unit(time_ps, unit) for time_ps in row))
    return table


def collective_table(collectives: "pa.Table", max_rows: int, *, with_waits: bool = False) -> FittedTable:
    """Return a table of collectives.parquet by group name, kind, size and members, those with the most time first.

    Args:
        collectives: Columns of collectives.parquet.
        max_rows: Maximum number of rows of the table.
        with_waits: Whether a column shows for how long the first members waited for the last ones.
    """
    found = slowest_collectives(collectives)
    played, algorithms = (collectives[name].to_pylist() for name in ("closed_form_played", "algorithm"))
    numbers = ("time_ps", "closed_form_ps", "algbw_Bps", "busbw_Bps")
    columns = {name: numpy_column(collectives[name], np.float64) for name in numbers}
    columns["wait_ps"] = numpy_column(collectives["ready_ps"]) - numpy_column(collectives["start_ps"])
    means = [{name: float(column[rows].mean()) for name, column in columns.items()} for _, rows in found[:max_rows]]
    unit = time_unit(mean["time_ps"] for mean in means)
    names = name_column("group", 5), name_column("kind"), name_column("algorithm", 3)
    waited = ["waited"] if with_waits else []
    counted = "size", ("n", 7), ("count", 6), "time"
    compared = ("closed form", 8), ("ratio", 2), ("algbw", 9), ("busbw", 4)
    title = (
        f"collectives: mean time and closed form on an idle network ({unit.name}), algorithm and bus bandwidth (GB/s)"
    )
    table = FittedTable(title, *names, *counted, *waited, *compared, full_output_option=WHOLE)
    for (key, rows), mean in zip(found, means, strict=False):
        about = "" if all(played[row] for row in rows) else "~"
        closed_ps = mean["closed_form_ps"]
        ratio = f"{about}{mean['time_ps'] / closed_ps:.3f}" if closed_ps > 0 else "-"
        times = [in_unit(mean[name], unit) for name in ("time_ps", *(["wait_ps"] if with_waits else []))]
        rates_gbps = (f"{mean[name] / 1e9:.2f}" for name in ("algbw_Bps", "busbw_Bps"))
        texts = key.group or "all", key.kind, algorithms[rows[0]]
        counts = terminal.buffer_text(key.size_bytes), str(key.members), len(rows)
        table.add_row(*texts, *counts, *times, about + in_unit(closed_ps, unit), ratio, *rates_gbps)
    if len(found) > max_rows:
        table.notes.append(f"and {len(found) - max_rows:,} more in collectives.parquet")
    return table


def _headline(simulation: FinishedRun, analysis: RunAnalysis, took_s: float) -> str:
    """Return lines about fabric, time, traffic, and the mean NPU."""
    results, counters = simulation.results, simulation.results.counters
    times, whole_ps = analysis.npu_times, max(results.finish_time_ps, 1)
    columns = times.compute_ps, times.exposed_ps, times.host_ps, times.idle_ps
    compute, exposed, host, idle = (float(column.mean()) / whole_ps for column in columns)
    of_host = f"host alone {host:.1%}, " if times.cpu_ps.any() else ""
    mean_npu = f"\nmean NPU: compute {compute:.1%}, exposed communication {exposed:.1%}, {of_host}idle {idle:.1%}"
    return (
        f"{simulation.graph.npus} NPUs on {simulation.graph.name}\n"
        f"{_constants(simulation)}{_interference(simulation)}{_operators(simulation)}{_faults(simulation)}"
        f"{time_text(results.finish_time_ps)} simulated in {results.wall_s:.2f} s, "
        f"{took_s:.1f} s since the command began\n"
        f"{counters['trace_nodes']:,} trace nodes, "
        f"{_moved(simulation) if simulation.settings.fidelity.model.has_links else _no_contention(simulation)}"
        f"{'' if _has_only_messages(analysis) else mean_npu}"
    )


def _faults(simulation: FinishedRun) -> str:
    """Return a line that lists the faults of the run, and what they cost if the run without them was simulated."""
    faults, finish_ps = simulation.without_effect.faults, simulation.results.finish_time_ps
    if not faults:
        return ""
    more = f" and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
    listed = "; ".join(fault.text for fault in faults[:MAX_FAULTS]) + more
    healthy_ps = simulation.without_faults_ps
    if healthy_ps < 0:
        return f"faults: {listed}; [output] without_faults = true shows what they cost\n"
    lost_ps = finish_ps - healthy_ps
    return (
        f"faults {'cost' if lost_ps >= 0 else 'save'} {time_text(abs(lost_ps))}, "
        f"{abs(lost_ps) / max(healthy_ps, 1):.1%} of the {time_text(healthy_ps)} without them: {listed}\n"
    )


def _has_only_messages(analysis: RunAnalysis) -> bool:
    """Return whether the NPUs only sent and received, as `Run.has_only_messages`."""
    times = analysis.npu_times
    return not (len(analysis.collectives.group) or times.compute_ps.any() or times.memory_ps.any())


def _moved(simulation: FinishedRun) -> str:
    """Return a line about the network traffic."""
    results, counters = simulation.results, simulation.results.counters
    moved = f"{counters['flows']:,} messages, {counters['packets']:,} packets, {counters['dropped_packets']:,} dropped"
    hops = "packet-hops"
    if simulation.settings.flow_groups is not None:
        moved += f"; as flows: {', '.join(simulation.flow_names)}"
    hooks = simulation.settings.fidelity.hooks
    if hooks.act:
        flows = " as flows" if simulation.settings.coupled is None else ", collectives as coupled flows"
        how = flows if hooks.settle else f", whole ({hooks.name.replace('_', '-')})"
        moved = f"{counters['flows']:,} messages{how}"
        hops = "message-hops"
    rate = results.simulated_hops / max(results.wall_s, 1e-9)
    lines = [moved, f"{counters['packet_hops']:,} {hops}{_replayed(results.reuse)}, {rate / 1e6:.1f} M/s"]
    if simulation.settings.fast_forward:
        lines.append(_forwarded(results))
    return "\n".join(lines)


def _forwarded(results: Results) -> str:
    """Return a line about the periods that fast-forward has counted."""
    counts, finish_ps = results.reuse, results.finish_time_ps
    if not counts.get("near_periods"):
        return "fast-forward: every period was simulated or repeats another exactly"
    return (
        f"fast-forward: {counts['near_periods']:,} periods, {counts['near_ps'] / finish_ps:.1%} of the time, are taken "
        f"to be as long as those simulated between them; as far as these differ, the end is within "
        f"{counts['near_error_ps'] / finish_ps:.2%}"
    )


def _replayed(reuse: dict[str, int]) -> str:
    """Return a text about collectives that were replayed and periods of the run that recurred; empty without any."""
    text = ""
    if reuse.get("episodes_replayed"):
        text += (
            f", {reuse['replayed_hops']:,} of them replayed ({reuse['episodes_replayed']:,} times collectives of "
            f"NVLink domains, {reuse['episodes_simulated']:,} simulated, {reuse['episodes_disturbed']:,} disturbed)"
        )
    if reuse.get("repeated_periods"):
        text += f", {reuse['repeated_hops']:,} in {reuse['repeated_periods']:,} periods that repeat earlier ones"
    return text


def _no_contention(simulation: FinishedRun) -> str:
    """Return a line about the limits of closed forms."""
    kept_rows = simulation.results.kept_rows
    name = simulation.settings.fidelity.model.name
    said = f"{name}: every collective and message as if alone on the network, no contention"
    if kept_rows:
        kept, npus = len(np.unique(kept_rows.like)), simulation.program.npus
        said += (
            f"\n{kept:,} of {npus:,} NPUs are shown, the others are identical to these (npus.parquet: represented_by)"
        )
    return said


def _constants(simulation: FinishedRun) -> str:
    """Return a line about the source of NCCL's constants, if the fabric provides them."""
    graph, settings = simulation.graph, simulation.collectives
    specs = {settings.algorithm_of(kind) for kind in settings.algorithm if kind != UNEVEN}
    guessed = sorted(spec for spec in specs if spec.partition(":")[0] == ON_NVSWITCHES and "generation=" not in spec)
    if not guessed:
        return ""
    rate_bps = int(graph.link_rate_bps[graph.node_kind[graph.link_dst] == NVSWITCH].max(initial=0))
    made = generation_of(AUTO, graph.accelerator, rate_bps).name
    why = "the machine" if graph.accelerator == made else f"NVLinks of {terminal.rate_text(rate_bps)}"
    return f"collectives: nccl with the constants of {made} ({why})\n"


def _interference(simulation: FinishedRun) -> str:
    """Return a line about the slow-down of computation beside collectives, if there is one."""
    slowdown, of_jobs = simulation.settings.compute_slowdown, simulation.settings.job_slowdowns
    if of_jobs and simulation.program.jobs is not None:
        names = zip(simulation.program.jobs.names, of_jobs, strict=True)
        slowed = [f"{factor:g} times as long in {name}" for name, factor in names if factor > 1]
        shown = ", ".join(slowed[:MAX_JOBS]) + (f" and {len(slowed) - MAX_JOBS} more" if len(slowed) > MAX_JOBS else "")
        return f"computation beside a collective takes {shown}\n"
    return "" if slowdown == 1 else f"computation beside a collective takes {slowdown:g} times as long\n"


def _operators(simulation: FinishedRun) -> str:
    """Return a line about the sources of operator times, if some are measured."""
    counts, tables = simulation.operators
    if set(counts) <= {"roofline"}:
        return ""
    package = f" ({tables})" if tables else ""
    numbers = ", ".join(f"{counts[source]:,} {source}" for source in SOURCES if source in counts)
    return f"operators: {numbers}{package}\n"


def step_line(simulation: FinishedRun) -> str:
    """Return time per step, tokens per second and utilisation; "" for a run without a model.

    Args:
        simulation: The finished run with its inputs (`FinishedRun`).
    """
    rates = throughput(simulation)
    if rates is None:
        return ""
    step_ps = simulation.results.finish_time_ps / rates.steps
    said = [f"step: {time_text(step_ps)}", f"{rates.tokens_per_s:,.0f} tokens/s"]
    said.append(f"{rates.model_flops / step_ps * PS_PER_S / 1e15:,.2f} PFLOP/s")
    if rates.mfu is None or rates.hfu is None or rates.mfu_all_pairs is None or rates.hfu_all_pairs is None:
        return ", ".join(said)
    said.append(f"MFU {rates.mfu:.1%}")
    all_pairs = f"{rates.mfu_all_pairs:.1%}"
    if rates.hardware_flops != rates.model_flops:
        said.append(f"HFU {rates.hfu:.1%}")
        all_pairs += f" and {rates.hfu_all_pairs:.1%}"
    return f"{', '.join(said)} ({all_pairs} with all pairs of query and key)"


def step_table(analysis: RunAnalysis) -> FittedTable | None:
    """Return the time of the NPUs by category; None if no node name has an axis.

    Args:
        analysis: Result of the analysis of the run (`RunAnalysis`).
    """
    if analysis.step_times is None:
        return None
    times = rows_of_busy_npus(analysis.step_times)
    unit = time_unit(times[:, 0].tolist())
    columns = "mean", "share", ("minimum", 1), ("maximum", 2)
    title = f"time of {len(times):,} NPUs by category ({unit.name})"
    table = FittedTable(title, name_column("category"), *columns, full_output_option=WHOLE)
    whole_ps = max(float(times[0].sum()), 1.0)
    for place, name in enumerate(STEP_CATEGORIES):
        column = times[:, place]
        if column.any() or name == "compute":
            mean_ps, ends = float(column.mean()), (float(np.min(column)), float(np.max(column)))
            row = [in_unit(time_ps, unit) for time_ps in (mean_ps, *ends)]
            table.add_row(_words(name), row[0], f"{mean_ps / whole_ps:.1%}", *row[1:])
    return table


def _words(category: str) -> str:
    """Return a category of time in words."""
    if category in COMMUNICATION_AXES:
        return f"exposed {category}"
    return "exposed, no axis" if category == "unnamed" else category


def serving_table(serving: dict[str, Any]) -> FittedTable:
    """Return the table of `serving` in summary.json, a row per kind of time."""
    known = {name: serving[name] for name in MEANINGS if name in serving}
    unit = time_unit(times["p50_ps"] for times in known.values())
    counts = f"{serving['requests']:,} requests, {serving['tokens']:,} tokens, {serving['tokens_per_s']:,.0f} tokens/s"
    title = f"serving: {counts} ({unit.name})"
    table = FittedTable(title, name_column("time"), *COLUMNS, full_output_option="summary.json")
    for name, times in known.items():
        times_ps = (times["mean_ps"], *(times[f"p{p}_ps"] for p in PERCENTILES), times["quantiles_ps"][-1])
        cells = ("-" if time_ps is None else in_unit(time_ps, unit) for time_ps in times_ps)
        table.add_row(f"{name.upper()}, {MEANINGS[name][0]}", *cells)
    note_too_few(table, "requests")
    return table


MAX_JOBS = 20


def jobs_table(jobs: Sequence[dict[str, Any]], max_rows: int = MAX_JOBS) -> FittedTable:
    """Return a row per job (`jobs` of summary.json): NPUs, start, time, throughput, and what it lost to which jobs.

    Args:
        jobs: Table `jobs` of summary.json.
        max_rows: Maximum number of rows of the table.
    """
    has_alone = any("slowdown" in job for job in jobs)
    has_mfu = any("mfu" in job["step"] for job in jobs)
    has_shares = any(job["shares"] for job in jobs)
    columns: list[Any] = [name_column("job"), "NPUs", ("start", 5), "time"]
    columns += ["alone", "slow-down"] if has_alone else []
    columns += [("step", 3), ("MFU", 2)] if has_mfu else []
    columns += [text_column("shares links with", 4)] if has_shares else []
    table = FittedTable("jobs", *columns, name_column("digest", 6), full_output_option="--out")
    for job in jobs[:max_rows]:
        cells = [job["name"], f"{job['npus']:,}", time_text(job["start_ps"]), time_text(job["time_ps"])]
        if has_alone:
            cells += [
                time_text(job["alone_ps"]) if "alone_ps" in job else "-",
                f"{job['slowdown']:.3f}" if "slowdown" in job else "-",
            ]
        if has_mfu:
            of_step = job["step"]
            cells += [
                time_text(of_step["time_ps"]) if "time_ps" in of_step else "-",
                f"{of_step['mfu']:.1%}" if "mfu" in of_step else "-",
            ]
        cells += [shares_text(job["shares"])] if has_shares else []
        table.add_row(*cells, job["digest"][:12])
    if len(jobs) > max_rows:
        table.notes.append(f"and {len(jobs) - max_rows:,} more in summary.json")
    return table


_MAX_PIECES = 20


def explanation_report(document: dict[str, Any]) -> RenderableType:
    """Return the document of nadi.insight.explanation.document as something that a rich Console prints."""
    whole = time_text(document["finish_time_ps"])
    head = f"{whole}: the critical path has {document['pieces']:,} pieces on {len(document['npus']):,} NPUs"
    what_if = what_if_table(document)
    what_if.notes.append("predicted from the run's dependencies and closed forms, not simulated again")
    unit = time_unit(row["time_ps"] for row in document["by_bound"])
    table = FittedTable("time by bound", name_column("bound"), f"time ({unit.name})", "share")
    for row in document["by_bound"]:
        table.add_row(row["bound"], in_unit(row["time_ps"], unit), f"{row['share']:.1%}")
    return Group(head, path_table(document, _MAX_PIECES), table, what_if)


def path_table(document: dict[str, Any], max_rows: int) -> FittedTable:
    """Return the pieces of the critical path by activity and operation.

    Args:
        document: Document of nadi.insight.explanation.
        max_rows: Maximum number of rows of the table.
    """
    rows = document["by_what"][:max_rows]
    unit = time_unit(row["time_ps"] for row in rows)
    columns = ("pieces", 2), f"time ({unit.name})", "share", text_column("main bound", 1)
    title = "composition of the critical path"
    table = FittedTable(title, name_column("activity"), name_column("operation"), *columns)
    for row in rows:
        time = in_unit(row["time_ps"], unit)
        table.add_row(row["what"], row["sort"], row["count"], time, f"{row['share']:.1%}", row["bound"])
    return table


def what_if_table(document: dict[str, Any]) -> FittedTable:
    """Return the predicted time of the run after each change.

    Args:
        document: Document of nadi.insight.explanation.
    """
    table = FittedTable("what if", text_column("change"), "predicted time", "saving")
    for row in document["what_if"]:
        table.add_row(row["change"], time_text(row["finish_time_ps"]), f"{row['gain']:.2%}")
    return table

"""The overview of a run: its inputs and main results."""

from typing import Any

from nadi.inputs.units import PS_PER_S
from nadi.insight.runs import Run
from nadi.reports.pages.page import Fact, Facts, PageSection, Paragraph, Part
from nadi.terminal import amount_text, time_text

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


def section(run: Run) -> PageSection:
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

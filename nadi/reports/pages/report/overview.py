"""What was run, and what came out, in a dozen figures."""

from typing import Any

from inputs.units import PS_PER_S
from nadi.insight.runs import Run
from nadi.reports.pages.page import Fact, Facts, PageSection, Paragraph, Part
from nadi.terminal.readable import amount_text, time_text

_FLOPS_PER_PFLOP = 1e15
_EVENTS = {
    "dropped_packets": ("packets dropped", "Lost at a full queue, or by a failed link."),
    "marked_packets": ("packets marked", "ECN: a queue was above its threshold when they came."),
    "pause_frames": ("pauses", "PFC: a switch asked the sender of a link to stop, as its buffer was filling."),
    "trimmed_packets": ("packets trimmed", "Cut to their headers, as the queue was full."),
    "retransmitted_packets": ("packets sent again", "After a loss, a timeout, or out of order."),
    "timeouts": ("timeouts", "A sender heard nothing for its timeout and started again."),
    "congestion_notifications": ("congestion notifications", "CNPs that receivers sent to DCQCN senders."),
}


def section(run: Run) -> PageSection:
    """Time, throughput, traffic, and what went wrong in the network."""
    summary = run.summary
    parts: list[Part] = [Paragraph(warning, is_warning=True) for warning in run.warnings]
    facts = [Fact("simulated time", time_text(run.finish_time_ps), "From the start until the last NPU was done.")]
    facts += _step(summary.get("step", {}), run.finish_time_ps)
    facts += [
        Fact("NPUs", f"{summary.get('npus', 0):,}", "GPUs or other accelerators, each with its own trace."),
        Fact("network", _network(summary), "How the network is modelled: docs/explanation/fidelity.md."),
    ]
    if summary.get("network") != "closed-form":  # which sends none
        facts += [
            Fact("messages", f"{summary.get('flows', 0):,}", "Sends, and the messages that collectives are made of."),
            Fact("payload", amount_text(summary.get("payload_bytes", 0)), "Bytes of messages, without headers."),
        ]
    if summary.get("packets"):
        facts.append(Fact("packets", f"{summary['packets']:,}", "Data and acknowledgements."))
    facts += [Fact(name, f"{summary[key]:,}", why) for key, (name, why) in _EVENTS.items() if summary.get(key)]
    facts.append(Fact("digest", run.digest[:12], "Of all that happened. Equal digests: the same run, on any machine."))
    return PageSection("overview", "What was run", "The run in figures.", [*parts, Facts(facts)])


def _network(summary: dict[str, Any]) -> str:
    switches = summary.get("switches", "none")
    return str(summary.get("network", "")) + (f", {switches}" if switches != "none" else "")


def _step(step: dict[str, Any], finish_ps: int) -> list[Fact]:
    """Of a model's training step."""
    if "tokens_per_s" not in step:
        return []
    step_s = step.get("time_ps", finish_ps) / PS_PER_S
    rate = step["model_flops"] / step_s / _FLOPS_PER_PFLOP
    facts = [
        Fact("step time", time_text(step["time_ps"]), "Of one optimizer step."),
        Fact(
            "tokens", f"{step['tokens_per_s']:,.0f} /s", "Of all replicas: global batch times sequence over step time."
        ),
        Fact(
            "model FLOP",
            f"{rate:,.2f} PFLOP/s",
            "Operations that the model needs, causal attention counted half, over step time.",
        ),
    ]
    if "mfu" in step:
        why = "Model FLOP utilisation: those over what the GPUs could do at their peak."
        facts.append(Fact("MFU", f"{step['mfu']:.1%}", why))
    if "mfu_all_pairs" in step:
        why = "The same with all pairs of query and key, as PaLM (arXiv 2204.02311, appendix B) and Megatron-LM count."
        facts.append(Fact("MFU, all pairs", f"{step['mfu_all_pairs']:.1%}", why))
    return facts

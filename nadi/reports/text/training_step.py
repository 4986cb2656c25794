"""Text for the terminal about a training step."""

import numpy as np

from inputs.units import PS_PER_S
from nadi.insight.analysis.findings import Findings
from nadi.insight.analysis.step_times import AXES, CATEGORIES
from nadi.insight.analysis.training_step import at_work, throughput
from nadi.simulation.run import FinishedRun
from nadi.terminal.readable import in_unit, time_text, time_unit
from nadi.terminal.tables import FittedTable, name_column

WHOLE = "--out"


def step_line(simulation: FinishedRun) -> str:
    """Return time per step, tokens per second and utilisation; "" for a run without a model."""
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


def step_table(findings: Findings) -> FittedTable | None:
    """Return the time of the NPUs by category; None if no node name has an axis."""
    if findings.step_times is None:
        return None
    times = at_work(findings.step_times)
    unit = time_unit(times[:, 0].tolist())
    columns = "mean", "share", ("minimum", 1), ("maximum", 2)
    title = f"time of {len(times):,} NPUs by category ({unit.name})"
    table = FittedTable(title, name_column("category"), *columns, full_output_option=WHOLE)
    whole_ps = max(float(times[0].sum()), 1.0)
    for place, name in enumerate(CATEGORIES):
        column = times[:, place]
        if column.any() or name == "compute":
            mean_ps, ends = float(column.mean()), (float(np.min(column)), float(np.max(column)))
            row = [in_unit(time_ps, unit) for time_ps in (mean_ps, *ends)]
            table.add_row(_words(name), row[0], f"{mean_ps / whole_ps:.1%}", *row[1:])
    return table


def _words(category: str) -> str:
    if category in AXES:
        return f"exposed {category}"
    return "exposed, no axis" if category == "unnamed" else category

"""Joules and dollars of a finished run."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inputs.units import PS_PER_S
from nadi.energy.bill import Bill, PortUse, Usage, bill, document
from nadi.energy.ports import port_uses
from nadi.energy.table import OTHER, EnergyTable, choose, read_table
from nadi.insight.runs.run import Run
from nadi.simulation.schemas import LINKS

TOLD = "Closed forms send nothing over links: what links sent is told from the traces, spread over all equal ways."


class RunBill(NamedTuple):
    """A run's bill.

    Attributes:
        usage: what of the run counts.
        bill: what it costs.
        table: by which table.
        table_from: the user's file; None = the default alone.
        notes: what is not counted, or assumed: a sentence each.
    """

    usage: Usage
    bill: Bill
    table: EnergyTable
    table_from: Path | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        whole = document(self.usage, self.bill)
        used = self.table.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"ranges"})
        used["gpus"] = {self.bill.gpu: used["gpus"][self.bill.gpu]}
        source = None if self.table_from is None else str(self.table_from)
        return whole | {"notes": list(self.notes), "table_from": source, "table": used}


def energy_of(run: Run, table: Path | None = None) -> RunBill:
    """A run's energy and cost.

    Args:
        run: with npus.parquet and links.parquet.
        table: in place of the one that the run file names.

    Raises:
        ConfigError: the table, or one of the run's, cannot be read or is wrong.
    """
    named = run.summary.get("config", {}).get("energy", {}).get("table")
    path = table or (Path(run.summary.get("working_folder", ".")) / named if named else None)
    rows = read_table(path)
    usage, unused = _usage(run, rows)
    notes = []
    if choose(rows, usage.gpu).name == OTHER:
        which = f"the table has no GPU {usage.gpu!r}" if usage.gpu else "the run names no GPU"
        notes.append(f"{which}: power and price are those of gpus.{OTHER}.")
    if "ports" in run.summary:
        notes.append(TOLD)
    switch_ports = usage.ports.get("switch_port")
    if switch_ports and switch_ports.number < 0.999 * switch_ports.present:
        notes.append(
            f"Switch ports: the run's share is {switch_ports.number:,.1f} of {switch_ports.present:,}, as many as its "
            "NPUs can fill; the others are left to other jobs."
        )
    if unused:
        notes.append(f"{unused:,} switches that serve no NPU and sent nothing are not counted.")
    return RunBill(usage, bill(usage, rows), rows, path, tuple(notes))


def _usage(run: Run, table: EnergyTable) -> tuple[Usage, int]:
    """What counts, and how many switches do not."""
    npus, step = run.npus, run.summary.get("step", {})
    finish_ps = float(run.finish_time_ps)
    # While the host computes alone, the accelerator is idle.
    columns = {"compute": ("compute_ps",), "communication": ("exposed_ps",), "idle": ("idle_ps", "host_ps")}
    times = {
        name: float(sum(np.sum(np.asarray(npus[column], np.float64)) for column in parts))
        for name, parts in columns.items()
    }
    times["memory"] = finish_ps * len(npus) - sum(times.values())
    steps = int(step.get("steps", 0))
    tokens = float(step.get("tokens_per_s", 0.0)) * finish_ps / PS_PER_S
    told = run.summary.get("ports")
    if told:  # of a run at closed forms
        ports, unused = {name: PortUse(**of) for name, of in told["used"].items()}, int(told["unused_switches"])
    else:
        ports, unused = _ports(run) if run.has(LINKS) else ({}, 0)
    return Usage(_gpu(run, table), len(npus), finish_ps, times, ports, steps, tokens), unused


def _gpu(run: Run, table: EnergyTable) -> str:
    """The GPU that computes, or else one whose name stands in the fabric's: "dgx-h100:npus=16"."""
    said = run.summary.get("config", {}).get("compute", {}).get("gpu")
    if said:
        return Path(said).stem
    words = set(re.split(r"[^a-z0-9]+", str(run.summary.get("topology", "")).lower()))
    return next((name for name in table.gpus if name in words), "")


def _ports(run: Run) -> tuple[dict[str, PortUse], int]:
    """Ports that send over the links, and how many switches are left out."""
    links = run.links
    ends = [*links["src"].to_pylist(), *links["dst"].to_pylist()]
    number = {name: place for place, name in enumerate(dict.fromkeys(ends))}
    src, dst = np.array([number[name] for name in ends], np.int64).reshape(2, -1)
    is_npu = np.array([name.startswith("npu ") for name in number], np.bool_)
    is_nvswitch = np.array([name.startswith("nvswitch") for name in number], np.bool_)
    rate_bps, sent = (np.asarray(links[column], np.float64) for column in ("rate_bps", "tx_bytes"))
    return port_uses(src, dst, is_npu, is_nvswitch, rate_bps, sent)

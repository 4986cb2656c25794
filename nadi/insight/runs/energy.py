"""Energy (joules) and cost (dollars) of a finished run."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi.energy import (
    OTHER_GPU,
    Bill,
    EnergyTable,
    PortUse,
    Usage,
    bill,
    bill_document,
    gpu_cost,
    port_uses,
    read_table,
)
from nadi.inputs.arrow import numpy_column
from nadi.inputs.units import PS_PER_S
from nadi.insight.runs.run import Run
from nadi.simulation.schemas import JOB_LINKS, LINKS

CLOSED_FORM_NOTE = (
    "Closed forms send nothing over links: what links sent is told from the traces, spread over all equal ways."
)


_BUSY = {"compute": "compute_ps", "communication": "exposed_ps"}  # activity of NPUs: column of npus.parquet


class RunBill(NamedTuple):
    """The energy and cost of a run."""

    usage: Usage  # times, ports, steps and tokens of the run that the bill counts
    bill: Bill  # energy and cost of this usage
    table: EnergyTable  # energy table that holds the powers and prices
    table_from: Path | None  # path of the user's table; None for the default table alone
    notes: tuple[str, ...]  # sentences about what the bill assumes or does not count
    jobs: tuple[tuple[str, Usage, Bill], ...] = ()  # name, usage and bill of each of [[jobs]]

    def document(self) -> dict[str, Any]:
        """Return the bill as a JSON document."""
        totals = bill_document(self.usage, self.bill)
        used = self.table.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"ranges"})
        used["gpus"] = {self.bill.gpu: used["gpus"][self.bill.gpu]}
        if self.jobs:
            totals["jobs"] = [{"job": name, **bill_document(usage, costs)} for name, usage, costs in self.jobs]
        source = None if self.table_from is None else str(self.table_from)
        return totals | {"notes": list(self.notes), "table_from": source, "table": used}


def energy_of(run: Run, table: Path | None = None) -> RunBill:
    """Return the energy and cost of a run; table: path of a table that replaces the one of the run file."""
    named = run.summary.get("config", {}).get("energy", {}).get("table")
    path = table or (Path(run.summary.get("working_folder", ".")) / named if named else None)
    rows = read_table(path)
    usage, unused = _usage(run, rows)
    notes = []
    if gpu_cost(rows, usage.gpu)[0] == OTHER_GPU:
        which = f"the table has no GPU {usage.gpu!r}" if usage.gpu else "the run names no GPU"
        notes.append(f"{which}: power and price are those of gpus.{OTHER_GPU}.")
    if "ports" in run.summary:
        notes.append(CLOSED_FORM_NOTE)
    switch_ports = usage.ports.get("switch_port")
    if switch_ports and switch_ports.number < 0.999 * switch_ports.present:
        notes.append(
            f"Switch ports: the run's share is {switch_ports.number:,.1f} of {switch_ports.present:,}, as many as its "
            "NPUs can fill; the others are left to other jobs."
        )
    if unused:
        notes.append(f"{unused:,} switches that serve no NPU and sent nothing are not counted.")
    jobs = [(name, own, bill(own, rows)) for name, own in _usages_of_jobs(run, usage)]
    if jobs:
        notes.append(
            "Jobs: NPUs from start to end of the job, ports by its share of NPUs, traffic by its share of bytes."
        )
    return RunBill(usage, bill(usage, rows), rows, path, tuple(notes), tuple(jobs))


def _usage(run: Run, table: EnergyTable) -> tuple[Usage, int]:
    """Return the usage that counts, and the number of switches that do not count."""
    npus, step = run.npus, run.summary.get("step", {})
    finish_ps = float(run.finish_time_ps)
    # While the host computes alone, the accelerator is idle.
    columns = {"compute": ("compute_ps",), "communication": ("exposed_ps",), "idle": ("idle_ps", "host_ps")}
    times = {
        name: float(sum(np.sum(numpy_column(npus[column], np.float64)) for column in parts))
        for name, parts in columns.items()
    }
    times["memory"] = finish_ps * len(npus) - sum(times.values())
    steps = int(step.get("steps", 0))
    tokens = float(step.get("tokens_per_s", 0.0)) * finish_ps / PS_PER_S
    summary = run.summary.get("ports")
    if summary:  # only runs without links have it
        ports, unused = {name: PortUse(**use) for name, use in summary["used"].items()}, int(summary["unused_switches"])
    else:
        ports, unused = _ports(run) if run.has(LINKS) else ({}, 0)
    return Usage(_gpu(run, table), len(npus), finish_ps, times, ports, steps, tokens), unused


def _usages_of_jobs(run: Run, whole: Usage) -> list[tuple[str, Usage]]:
    """Return name and usage of each job of a run of [[jobs]]; whole: usage of the run."""
    jobs = run.summary.get("jobs", [])
    if not jobs or "job" not in run.npus.column_names:
        return []
    of_npu = np.array(run.npus["job"].to_pylist(), dtype=object)
    sent = run.read(JOB_LINKS, ["job", "tx_bytes"]) if run.has(JOB_LINKS) else None
    of_row = np.array([] if sent is None else sent["job"].to_pylist(), dtype=object)
    bytes_of_row = np.zeros(0) if sent is None else numpy_column(sent["tx_bytes"], np.float64)
    usages = []
    for job in jobs:
        own, count, time_ps = of_npu == job["name"], int(job["npus"]), float(job["time_ps"])
        # ports are shared by number of NPUs, as their power hardly depends on traffic
        of_npus = count / max(len(of_npu), 1)
        of_bytes = bytes_of_row[of_row == job["name"]].sum() / max(bytes_of_row.sum(), 1) if len(of_row) else of_npus
        busy = {name: float(numpy_column(run.npus[column])[own].sum()) for name, column in _BUSY.items()}
        host = float(numpy_column(run.npus["host_ps"])[own].sum())
        # idle time of the run, less that before and after the job
        waits = float(numpy_column(run.npus["idle_ps"])[own].sum()) - (whole.finish_ps - time_ps) * count
        busy["idle"] = max(waits, 0.0) + host
        busy["memory"] = max(time_ps * count - sum(busy.values()), 0.0)
        ports = {
            sort: PortUse(use.number * of_npus, use.rate_bps * of_npus, use.tx_bytes * of_bytes, use.present)
            for sort, use in whole.ports.items()
        }
        step = job["step"]
        tokens = float(step.get("tokens_per_s", 0.0)) * time_ps / PS_PER_S
        usages.append((job["name"], Usage(whole.gpu, count, time_ps, busy, ports, int(step.get("steps", 0)), tokens)))
    return usages


def _gpu(run: Run, table: EnergyTable) -> str:
    """Return the configured GPU, else the first of the table whose name is in the fabric's ("dgx-h100:npus=16")."""
    configured = run.summary.get("config", {}).get("compute", {}).get("gpu")
    if configured:
        return Path(configured).stem
    words = set(re.split(r"[^a-z0-9]+", str(run.summary.get("topology", "")).lower()))
    return next((name for name in table.gpus if name in words), "")


def _ports(run: Run) -> tuple[dict[str, PortUse], int]:
    """Return the usage of ports by kind, and the number of switches that do not count."""
    links = run.links
    ends = [*links["src"].to_pylist(), *links["dst"].to_pylist()]
    # nodes by their names, as the table of links has them
    number = {name: place for place, name in enumerate(dict.fromkeys(ends))}
    src, dst = np.array([number[name] for name in ends], np.int64).reshape(2, -1)
    is_npu = np.array([name.startswith("npu ") for name in number], np.bool_)
    is_nvswitch = np.array([name.startswith("nvswitch") for name in number], np.bool_)
    rate_bps, sent = (numpy_column(links[column], np.float64) for column in ("rate_bps", "tx_bytes"))
    return port_uses(src, dst, is_npu, is_nvswitch, rate_bps, sent)

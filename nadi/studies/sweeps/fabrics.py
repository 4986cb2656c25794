"""Fabrics compared for one job: the step on each, its energy and price, and what the failure of a part costs.

`compare_fabrics` runs the job on every fabric, then again with one part of each kind down from the begin to the end: a
NIC's cable, a cable between switches, a switch. The part is the one of its kind that carried most, so that a failure
which the job can feel is not missed. Runs are points of a sweep: finished ones are not run again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Group

from nadi.configuration.input_files import Known
from nadi.errors import ConfigError
from nadi.inputs.arrays import numpy_column
from nadi.insight.metrics import metrics_of
from nadi.insight.runs import Run, energy_of
from nadi.reports import pages
from nadi.studies.sweeps import PointOutcome, folder_of, run_points
from nadi.studies.sweeps.points import Point, SweepDefinition, Value, point
from nadi.terminal import AnyColumn, FittedTable, metric_text, name_column, text_column, time_text, time_unit
from nadi.topologies import NVSWITCH, Graph

NETWORK_PARTS = ("NICs", "switch ports", "transceivers")  # of a bill: what a fabric adds to GPUs and hosts
CLUSTER = "topology.cluster"
PAGE = "fabrics.html"
PLACES = (".link", ".switch")  # ends of the keys that name the place of a fault
COLOURS_OF_TIME = pages.series_style(1).colour, pages.series_style(0).colour
_NOTE_OF_PARTS = (
    "Switches and cables are all that the fabric has; power and price are of those that the job is charged for."
)
_WHY = {
    "slower": "How much longer the job takes than on the fastest fabric.",
    "network W": "Mean power of NICs, switch ports and transceivers that the job is charged for (see energy and cost).",
    "network $": "Purchase price of the same parts, from the table of prices.",
    "exposed": "Share of the time in which communication that no computation hides keeps GPUs waiting.",
    "J": "Energy of a step, or of the run: GPUs, hosts, network and data centre.",
    "$": "Cost of a step, or of the run.",
    "what": "Kind of the failed part. Of each kind, the part that carried most bytes fails.",
    "slow-down": "Time of the job with the failed part over its time on the whole fabric.",
}


class FailedPart(NamedTuple):
    """A part of a fabric that is down for the whole run."""

    kind: str  # what it is, "cable npu - leaf" or "switch leaf"
    name: str  # its name, as in results: "npu 3 - leaf 0", "leaf 0"
    fault: dict[str, Value]  # its place, a key and value of [[faults]]


@dataclass(frozen=True)
class ComparedJob:
    """The job that all fabrics run."""

    run_file: Path | None  # run file with the keys that are not in `values`; None = no run file
    values: Mapping[str, Value]  # values by key of the run file: model, plan, number of GPUs, network model
    energy_table: Path | None = None  # file of powers and prices; None = that of the run file, or the default


def compare_fabrics(
    fabrics: Sequence[str],
    job: ComparedJob,
    folder: Path,
    max_runs_at_once: int,
    report: Callable[[str, int, int], None],
    *,
    force: bool = False,
) -> dict[str, Any]:
    """Run a job on fabrics, whole and with failed parts; return the document of the comparison.

    Args:
        fabrics: Cluster of each fabric, by name or file, with parameters.
        job: The job that each of them runs.
        folder: The folder of all results; runs that are finished there are not run again.
        max_runs_at_once: The number of processes that run the job.
        report: A function that gets the outcome of each run that ends as text, and how many of how many have ended.
        force: Whether `nadi run` gets --force.

    Raises:
        ConfigError: A fabric is given twice, a key is wrong, or the job fails on a whole fabric; the message is a line.
    """

    def run(points: list[Point]) -> dict[int, str]:
        """Run points, and return the errors of those that failed by their number."""
        sweep = SweepDefinition(folder, job.run_file, (CLUSTER,), points)
        ended = count(1)

        def tell(outcome: PointOutcome) -> None:
            values = points[outcome.point].values
            fault = next((f" without {value}" for key, value in values.items() if key.endswith(PLACES)), "")
            state = outcome.error or "finished"
            report(f"{values[CLUSTER]}{fault}: {state}", next(ended), len(points))

        outcomes = run_points(sweep, folder, range(len(points)), max_runs_at_once, tell, force=force)
        return {outcome.point: outcome.error for outcome in outcomes if outcome.error}

    if len(set(fabrics)) < len(fabrics):
        raise ConfigError(f"found {', '.join(fabrics)}; expected each fabric once")
    files: Known = {}
    wholes = [point(job.run_file, {CLUSTER: name, **job.values}, files) for name in fabrics]
    errors = run(wholes)
    for number, error in errors.items():
        raise ConfigError(f"{fabrics[number]}: {error}")
    runs = [Run(folder_of(folder, whole)) for whole in wholes]
    tried = [(number, part) for number, one in enumerate(runs) for part in busiest_parts(one)]
    faulty = []
    for number, part in tried:
        first = f"faults.{len(runs[number].summary['config'].get('faults', ()))}"
        fault = {"at": "0s", **part.fault, "state": "down"}
        values = {CLUSTER: fabrics[number], **job.values, **{f"{first}.{key}": value for key, value in fault.items()}}
        faulty.append(point(job.run_file, values, files))
    errors = run(faulty)
    documents = [_fabric(name, one, job.energy_table) for name, one in zip(fabrics, runs, strict=True)]
    for place, (number, part) in enumerate(tried):
        whole_ps = documents[number]["time_ps"]
        time_ps = None if place in errors else _time_ps(metrics_of(Run(folder_of(folder, faulty[place]))))
        documents[number]["failures"].append(
            {
                "kind": part.kind,
                "part": part.name,
                "time_ps": time_ps,
                "slowdown": None if time_ps is None else time_ps / whole_ps,
                "error": errors.get(place),
            }
        )
    best_ps = min(document["time_ps"] for document in documents)
    for document in documents:
        document["slower_than_best"] = document["time_ps"] / best_ps - 1
    bars = [bar for one in runs for bar in one.summary.get("error_bars", ())]
    return {"job": dict(job.values), "fabrics": documents, "error_bars": bars}


def busiest_parts(run: Run) -> list[FailedPart]:
    """Return, of each kind of cable and switch outside of hosts, the part that carried most bytes.

    Kinds follow from the words of the names of nodes, in the order of their first cables. Kinds of which no part
    carried anything are left out: the job would not feel their failure.

    Args:
        run: The run on the whole fabric.
    """
    graph = run.graph
    sent = numpy_column(run.links["tx_bytes"]).astype(np.int64)
    cable_bytes = sent[::2] + sent[1::2]
    outside = np.flatnonzero(are_outside(graph) & (cable_bytes > 0))
    through = np.bincount(graph.link_src[::2][outside], cable_bytes[outside], graph.nodes)
    through += np.bincount(graph.link_dst[::2][outside], cable_bytes[outside], graph.nodes)
    cables: dict[str, int] = {}
    switches: dict[str, int] = {}
    for cable in outside.tolist():
        ends = int(graph.link_src[2 * cable]), int(graph.link_dst[2 * cable])
        kind = " - ".join(graph.node_word(end) for end in ends)
        if kind not in cables or cable_bytes[cable] > cable_bytes[cables[kind]]:
            cables[kind] = cable
        for end in ends:
            word = graph.node_word(end)
            if end >= graph.npus and (word not in switches or through[end] > through[switches[word]]):
                switches[word] = end
    parts = [
        FailedPart(
            f"cable {kind}",
            _cable_name(graph, cable),
            {"link": _cable_name(graph, cable), "cable": _parallel(graph, cable)},
        )
        for kind, cable in cables.items()
    ]
    return parts + [
        FailedPart(f"switch {word}", graph.node_name(switch), {"switch": graph.node_name(switch)})
        for word, switch in switches.items()
    ]


def are_outside(graph: Graph) -> NDArray[np.bool_]:
    """Return bool[cables]: whether a cable is outside of hosts, so neither of an NVSwitch nor between GPUs of a host.

    Args:
        graph: The fabric.
    """
    ends = np.stack([graph.link_src[::2], graph.link_dst[::2]])
    is_nvlink = (graph.node_kind[ends] == NVSWITCH).any(axis=0)
    joins_npus = (ends < graph.npus).all(axis=0)
    hosts = graph.host[np.where(joins_npus, ends, 0)]
    return np.asarray(~is_nvlink & ~(joins_npus & (hosts[0] == hosts[1])))


def _cable_name(graph: Graph, cable: int) -> str:
    """Return the names of both ends of a cable."""
    return f"{graph.node_name(int(graph.link_src[2 * cable]))} - {graph.node_name(int(graph.link_dst[2 * cable]))}"


def _parallel(graph: Graph, cable: int) -> int:
    """Return the number of a cable among those with the same ends."""
    before = 2 * np.arange(cable)
    ends = int(graph.link_src[2 * cable]), int(graph.link_dst[2 * cable])
    same = (graph.link_src[before] == ends[0]) & (graph.link_dst[before] == ends[1])
    return int((same | ((graph.link_src[before] == ends[1]) & (graph.link_dst[before] == ends[0]))).sum())


def _time_ps(metrics: Mapping[str, float]) -> float:
    """Return the time of an optimizer step among the metrics of a run, or of the run if it has none."""
    return metrics.get("step_time_ps", metrics["finish_time_ps"])


def _fabric(name: str, run: Run, energy_table: Path | None) -> dict[str, Any]:
    """Return the document of one fabric, without failures."""
    graph, bill, metrics = run.graph, energy_of(run, energy_table).bill, metrics_of(run)
    outside = are_outside(graph)
    switches: dict[str, int] = {}
    for node in np.unique(np.concatenate([graph.link_src[::2][outside], graph.link_dst[::2][outside]])).tolist():
        if node >= graph.npus:
            switches[graph.node_word(node)] = switches.get(graph.node_word(node), 0) + 1
    seconds = run.finish_time_ps / 1e12
    return {
        "name": name,
        "run": run.folder.name,
        "gpus": graph.npus,
        "switches": switches,
        "cables": int(outside.sum()),
        "network_W": sum(part.joules for part in bill.parts if part.name in NETWORK_PARTS) / seconds,
        "network_price_usd": bill.network_price_usd,
        "time_ps": _time_ps(metrics),
        "exposed_share": metrics.get("exposed_share"),
        "energy_J": metrics.get("energy_J", bill.joules),
        "cost_usd": metrics.get("cost_usd", bill.usd),
        "failures": [],
    }


def fabrics_table(document: Mapping[str, Any]) -> FittedTable:
    """Return the table of a comparison with a row per fabric, in the order of the command.

    Args:
        document: The document of `compare_fabrics`.
    """
    has_price = any(each["network_price_usd"] for each in document["fabrics"])
    columns: list[AnyColumn] = [
        name_column("fabric"),
        ("GPUs", 3),
        text_column("switches", 4),
        ("cables", 3),
        ("network W", 2),
    ]
    columns += [("network $", 2)] * has_price
    table = FittedTable("the job on each fabric", *columns, "time", "slower", ("exposed", 1), ("J", 2), ("$", 1))
    for each in document["fabrics"]:
        counts = ", ".join(f"{count:,} {word}" for word, count in each["switches"].items())
        price = [f"{each['network_price_usd']:,.0f}"] if has_price else []
        exposed = metric_text("share", each["exposed_share"])
        cells = f"{each['gpus']:,}", counts, f"{each['cables']:,}", f"{each['network_W']:,.0f}", *price
        times = time_text(each["time_ps"]), f"{each['slower_than_best']:.1%}"
        table.add_row(each["name"], *cells, *times, exposed, f"{each['energy_J']:,.4g}", f"{each['cost_usd']:,.4g}")
    return table


def failures_table(document: Mapping[str, Any]) -> FittedTable:
    """Return the table with a row per failed part of each fabric.

    Args:
        document: The document of `compare_fabrics`.
    """
    columns = name_column("fabric"), name_column("what"), name_column("part"), "time", "slow-down"
    table = FittedTable("one part down from begin to end", *columns, text_column("error", 1))
    for each in document["fabrics"]:
        for failure in each["failures"]:
            times = ("-", "-") if failure["error"] else (time_text(failure["time_ps"]), f"{failure['slowdown']:.3f}")
            table.add_row(each["name"], failure["kind"], failure["part"], *times, failure["error"] or "")
    return table


def both_tables(document: Mapping[str, Any]) -> Group:
    """Return both tables of a comparison for the terminal, without that of failures if nothing could fail.

    Args:
        document: The document of `compare_fabrics`.
    """
    tables = [fabrics_table(document), failures_table(document)]
    return Group(*[table for table in tables if table.rows])


def fabrics_page(document: Mapping[str, Any]) -> pages.Page:
    """Return the page of a comparison.

    Args:
        document: The document of `compare_fabrics`.
    """
    fabrics = document["fabrics"]
    names = [each["name"] for each in fabrics]
    best = min(fabrics, key=lambda each: each["time_ps"])
    job = ", ".join(f"{key} = {value}" for key, value in document["job"].items())
    unit = time_unit(each["time_ps"] for each in fabrics)
    exposed = [each["time_ps"] * (each["exposed_share"] or 0.0) / unit.ps for each in fabrics]
    rest = [each["time_ps"] / unit.ps - own for each, own in zip(fabrics, exposed, strict=True)]
    colours = [pages.series_style(number).colour for number in range(len(fabrics))]
    times = pages.bar_chart(names, {"exposed communication": exposed, "the rest": rest}, (*COLOURS_OF_TIME,), unit.name)
    whole: list[pages.Part] = [
        pages.Plot(f"time of the job ({unit.name})", times, f"{best['name']} is the fastest.", 150 + 40 * len(names)),
        pages.from_terminal(fabrics_table(document), _NOTE_OF_PARTS, _WHY),
    ]
    kinds = list(dict.fromkeys(failure["kind"] for each in fabrics for failure in each["failures"]))
    slowdown = [
        {failure["kind"]: failure["slowdown"] for failure in each["failures"] if failure["slowdown"]}
        for each in fabrics
    ]
    failures: list[pages.Part] = []
    if kinds:
        series = {
            name: [100 * (own.get(kind, np.nan) - 1) for kind in kinds]
            for name, own in zip(names, slowdown, strict=True)
        }
        drawn = pages.bar_chart(kinds, series, colours, "% longer", "group")
        height = 160 + 18 * len(kinds) * len(names)
        stopped = sum(failure["error"] is not None for each in fabrics for failure in each["failures"])
        described = f"{stopped} failures stop the job and have no bar." if stopped else "The job survives all of them."
        failures += [
            pages.Plot("what a failed part costs (% of the time)", drawn, described, height),
            pages.from_terminal(failures_table(document), "", _WHY),
        ]
    sections = [
        pages.PageSection("fabrics", "Fabrics", "The job on each whole fabric.", whole),
        pages.PageSection("failures", "Failures", "The same with one part down from the begin to the end.", failures),
    ]
    return pages.Page(f"{len(names)} fabrics for one job", f"{job}.", sections).with_error_bars(document["error_bars"])

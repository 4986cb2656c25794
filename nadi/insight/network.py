"""Network analysis of a folder of results: links, completion times, pauses, and the messages that pauses delayed.

A *pause* is the time from a pause frame for a class of a link to its resume. Switch b pauses link a -> b because its
buffer fills. If links that leave b were paused at that time, the one with the longest pause counts as the cause, else b
is where the congestion is: the root of a tree along which the pauses spread.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nadi.errors import ConfigError
from nadi.et.statistics import percentile
from nadi.inputs.arrays import Int64, numpy_column
from nadi.insight.runs import Run
from nadi.simulation.schemas import FLOWS, LINKS, MARKS, PAUSES, QUEUES, SAMPLES, Schema
from nadi.topologies import Graph, TopologyError, next_links

Table = Mapping[str, Any]  # columns by name: arrays, or lists of text

MAX_PAUSES = 100_000  # number of pauses whose causes are searched
MAX_PAIRS = 20_000  # number of NPU pairs whose paths are searched for paused links
MAX_MESSAGES = 200_000  # number of messages, the slowest ones, that are searched for victims
PERCENTILES = (50.0, 95.0, 99.0, 99.9, 100.0)  # percentiles of completion times and slow-downs
MAX_LINKS, MAX_TREES, MAX_VICTIMS = 10, 5, 20  # links per ranking, trees and delayed messages in the document
# columns of links.parquet that rank links, and the headings of these rankings
COLUMNS = {
    "utilisation": "busiest links",
    "marked_packets": "links with most marked packets",
    "paused_ps": "links paused longest",
    "dropped_packets": "links with most dropped packets",
    "trimmed_packets": "links with most trimmed packets",
}


@dataclass(frozen=True, eq=False)
class NetRun:
    """Network results of a run."""

    summary: dict[str, Any]  # contents of summary.json
    links: Table  # columns of links.parquet, and `name`
    # columns of these tables; None where the run has no such file
    flows: Table | None
    queues: Table | None
    samples: Table | None
    marks: Table | None
    pauses: Table | None
    graph: Graph | None  # fabric of the run; None if Nadi cannot build it again
    why_no_graph: str = ""  # reason why `graph` is None


class Pauses(NamedTuple):
    """The p pauses of a run, sorted by begin: link, data class, begin and end; int64[p] each."""

    link: Int64
    data_class: Int64
    start_ps: Int64
    end_ps: Int64


@dataclass
class PauseBranch:
    """A link in a tree of pauses, and the links that were paused because of it."""

    name: str  # name of the link; at the root, name of the switch
    link: int  # number of the link; -1 at the root
    first_ps: int  # begin of the first pause at this place in the tree
    pauses: int = 0  # number of pauses
    paused_ps: int = 0  # sum of the pauses in picoseconds
    spread: "dict[tuple[int, int], PauseBranch]" = field(default_factory=dict)  # further branches, by link and class

    def size(self) -> int:
        """Return the number of links in the tree."""
        return (self.link >= 0) + sum(branch.size() for branch in self.spread.values())

    def whole_ps(self) -> int:
        """Return the summed pauses of all links in the tree."""
        return self.paused_ps + sum(branch.whole_ps() for branch in self.spread.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the tree as a JSON document; branches are sorted by their first pause."""
        here: dict[str, Any] = {"link": self.name} if self.link >= 0 else {"switch": self.name}
        here |= {"first_ps": self.first_ps, "pauses": self.pauses, "paused_ps": self.paused_ps}
        return here | {"spread": [branch.as_dict() for branch in self.in_order()]}

    def in_order(self) -> "list[PauseBranch]":
        """Return the branches sorted by their first pause."""
        return sorted(self.spread.values(), key=lambda branch: (branch.first_ps, branch.link))


class Victim(NamedTuple):
    """A message that a pause delayed although it used no congested link."""

    row: int  # row in flows.parquet
    slowdown: float  # time over the time on an idle network; NaN where the latter is not known
    paused_ps: int  # longest pause, among the links on its path, within the message's lifetime
    link: int  # number of the link with this pause
    is_sure: bool  # False if the message is a victim on some of several equal paths only


# columns that each table must have
_NEEDED = {
    LINKS: ("src", "dst", "rate_bps", "utilisation"),
    FLOWS: ("src", "dst", "bytes", "start_ps", "finish_ps"),
    QUEUES: ("link", "time_ps", "bytes"),
    SAMPLES: ("link", "time_ps", "tx_bytes", "queue_bytes"),
    MARKS: ("link", "time_ps", "packets"),
    PAUSES: ("link", "time_ps", "data_class", "paused"),
}
_READ = {FLOWS: (*_NEEDED[FLOWS], "slowdown")}  # columns that are read of tables that may have very many rows


def read_net_run(folder: Path) -> NetRun:
    """Read the network results of a run; ConfigError if the folder holds no results that can be read."""
    run = Run(folder)
    links, flows, queues, samples, marks, pauses = (_columns(run, schema, needed) for schema, needed in _NEEDED.items())
    if links is None:
        raise ConfigError(f"{folder}: no links.parquet; expected results of `nadi run --out`")
    names = [f"{src} → {dst}" for src, dst in zip(links["src"], links["dst"], strict=True)]
    graph, why_no_graph = None, ""
    try:
        graph = run.graph
    except (ConfigError, TopologyError, OSError) as error:
        why_no_graph = " ".join(str(error).split())
    return NetRun(run.summary, {**links, "name": names}, flows, queues, samples, marks, pauses, graph, why_no_graph)


def top_links(link_columns: Table, column: str, max_rows: int) -> list[dict[str, Any]]:
    """Return the links with the largest non-zero values of a column: number, name, rate, the column, utilisation.

    Args:
        link_columns: Columns of links.parquet by name.
        column: Name of the column.
        max_rows: Maximum number of links.
    """
    values = link_columns.get(column)
    if values is None:
        return []
    chosen = np.argsort(-values, kind="stable")[:max_rows]
    return [
        {
            "link": int(link),
            "name": link_columns["name"][link],
            "rate_bps": int(link_columns["rate_bps"][link]),
            column: values[link].item(),
            "utilisation": float(link_columns["utilisation"][link]),
        }
        for link in chosen[values[chosen] > 0]
    ]


def tiers(links: Table) -> list[str]:
    """Return the tier of each link, such as "npu → leaf".

    Args:
        links: Columns of links.parquet by name.
    """
    return [f"{_kind(src)} → {_kind(dst)}" for src, dst in zip(links["src"], links["dst"], strict=True)]


def completion(message_columns: Table) -> list[dict[str, Any]]:
    """Return completion times and slow-downs of all messages, then by decade of their size.

    Args:
        message_columns: Columns of flows.parquet by name.
    """
    time_ps = message_columns["finish_ps"] - message_columns["start_ps"]
    slow = message_columns.get("slowdown", np.full(len(time_ps), np.nan))
    classes = size_classes(message_columns["bytes"])
    return [_of_messages(from_bytes, time_ps[here], slow[here]) for from_bytes, here in classes]


def size_classes(size_bytes: Int64) -> Iterator[tuple[int | None, NDArray[np.bool_]]]:
    """Yield all messages (None) and each decade of sizes (its lower limit), each with bool[m], its messages.

    size_bytes: int64[m], sizes of messages; without any, nothing is yielded.
    """
    decade = np.floor(np.log10(np.maximum(size_bytes, 1))).astype(np.int64)
    if len(decade):
        yield None, np.ones(len(decade), bool)
    for number in np.unique(decade).tolist():
        yield 10**number, decade == number


def find_pauses(log: Table, finish_ps: int) -> Pauses:
    """Return the pauses in a log of pauses and resumes; a pause without a resume lasts until the end of the run.

    Args:
        log: Columns of pauses.parquet by name.
        finish_ps: End of the run in picoseconds.
    """
    time_ps, link = log["time_ps"].astype(np.int64), log["link"].astype(np.int64)
    data_class, paused = log["data_class"].astype(np.int64), log["paused"].astype(np.bool_)
    order = np.lexsort((time_ps, data_class, link))
    time_ps, link, data_class, paused = (column[order] for column in (time_ps, link, data_class, paused))
    end_ps = np.full(len(link), max(finish_ps, int(time_ps.max(initial=0))))
    same = (link[1:] == link[:-1]) & (data_class[1:] == data_class[:-1])
    end_ps[:-1] = np.where(same, time_ps[1:], end_ps[:-1])
    begins = np.flatnonzero(paused)
    begins = begins[np.argsort(time_ps[begins], kind="stable")]
    return Pauses(link[begins], data_class[begins], time_ps[begins], end_ps[begins])


def causes(pauses: Pauses, link_columns: Table) -> Int64:
    """Return int64[p]: the pause that caused each pause; -1 if the congestion is at its own switch.

    A pause takes effect a link delay after its request; a pause that was active at the request may be the cause.

    Args:
        pauses: Pauses of the run.
        link_columns: Columns of links.parquet by name.
    """
    leaving: dict[tuple[str, int], dict[int, list[int]]] = {}
    starts = pauses.start_ps.tolist()
    cause = np.full(len(starts), -1, np.int64)
    delay_ps = link_columns["delay_ps"]
    for i, (link, of) in enumerate(zip(pauses.link.tolist(), pauses.data_class.tolist(), strict=True)):
        # the pause was asked for one link delay before it began
        asked_ps = starts[i] - int(delay_ps[link])
        earliest = starts[i]
        for earlier in leaving.get((link_columns["dst"][link], of), {}).values():
            # pauses of a link are in order of time: the last one before
            place = bisect_right(earlier, asked_ps, key=starts.__getitem__) - 1
            before = earlier[place] if place >= 0 else -1
            if before >= 0 and starts[before] < earliest and asked_ps < pauses.end_ps[before]:
                cause[i], earliest = before, starts[before]
        leaving.setdefault((link_columns["src"][link], of), {}).setdefault(link, []).append(i)
    return cause


def spread(pauses: Pauses, cause_of_pause: Int64, link_columns: Table) -> list[PauseBranch]:
    """Return the trees along which pauses spread, with `causes` of pauses, the largest first: one per root switch.

    Args:
        pauses: Pauses of the run.
        cause_of_pause: int64[p], result of `causes`.
        link_columns: Columns of links.parquet by name.
    """
    roots: dict[str, PauseBranch] = {}
    place: list[PauseBranch] = []
    for i, (link, of, start_ps, end_ps) in enumerate(zip(*(column.tolist() for column in pauses), strict=True)):
        switch = link_columns["dst"][link]
        # a pause without a cause begins a tree at the switch that asked for it
        root = (
            roots.setdefault(switch, PauseBranch(switch, -1, start_ps))
            if cause_of_pause[i] < 0
            else place[cause_of_pause[i]]
        )
        name = f"{link_columns['src'][link]} → {link_columns['dst'][link]}" + (f" (class {of})" if of else "")
        branch = root.spread.setdefault((link, of), PauseBranch(name, link, start_ps))
        branch.pauses += 1
        branch.paused_ps += end_ps - start_ps
        place.append(branch)
    return sorted(roots.values(), key=lambda root: (-root.size(), -root.whole_ps(), root.first_ps))


def root_links(roots: Sequence[PauseBranch], link_columns: Table) -> Int64:
    """Return the congested links: those that leave a root's switch and have at least half of its longest queue.

    Args:
        roots: Roots of the trees of `spread`.
        link_columns: Columns of links.parquet by name.
    """
    found: list[int] = []
    src = np.array(link_columns["src"])
    queue = link_columns["buffered_bytes"]
    for root in roots:
        here = np.flatnonzero(src == root.name)
        longest = queue[here].max(initial=0)
        # several ports of the switch may be congested at once
        found += here[2 * queue[here] >= max(longest, 1)].tolist()
    return np.unique(np.array(found, np.int64))


def victims(graph: Graph, message_columns: Table, pauses: Pauses, congested_links: Int64) -> list[Victim]:
    """Return messages delayed at a paused link although they use no congested link, the slowest first.

    The search covers the MAX_MESSAGES slowest messages, and at most MAX_PAIRS pairs of NPUs.

    Args:
        graph: The fabric (`Graph`).
        message_columns: Columns of flows.parquet by name.
        pauses: Pauses of the run.
        congested_links: Numbers of the links of `root_links`.
    """
    order = np.lexsort((pauses.start_ps, pauses.link))
    paused = pauses.link[order]
    firsts = np.flatnonzero(np.diff(paused, prepend=-1))
    parts = zip(np.split(pauses.start_ps[order], firsts[1:]), np.split(pauses.end_ps[order], firsts[1:]), strict=True)
    of_link = dict(zip(paused[firsts].tolist(), parts, strict=False))
    bad = set(congested_links.tolist())
    slow = message_columns.get("slowdown", np.full(len(message_columns["src"]), np.nan))
    paths: dict[tuple[int, int], dict[int, bool]] = {}
    found = []
    for row in np.argsort(-np.nan_to_num(slow, nan=-1.0), kind="stable")[:MAX_MESSAGES].tolist():
        pair = int(message_columns["src"][row]), int(message_columns["dst"][row])
        if max(pair) >= graph.npus:  # a switch that reduces
            continue
        if pair not in paths:
            if len(paths) == MAX_PAIRS:
                break
            paths[pair] = possible_links(graph, *pair)
        path = paths[pair]
        # every path of it crosses a congested link
        if any(path.get(link, False) for link in bad):
            continue
        start_ps, finish_ps = int(message_columns["start_ps"][row]), int(message_columns["finish_ps"][row])
        overlaps = (
            (is_sure, _overlap_ps(of_link[link], start_ps, finish_ps), -link)
            for link, is_sure in path.items()
            if link in of_link
        )
        is_sure, paused_ps, link = max((pause for pause in overlaps if pause[1] > 0), default=(False, 0, 0))
        if paused_ps:
            found.append(Victim(row, float(slow[row]), paused_ps, -link, is_sure and not bad & path.keys()))
    return found


def possible_links(graph: Graph, src: int, dst: int) -> dict[int, bool]:
    """Return the links of all equal paths between two NPUs; True for links that every path uses.

    Args:
        graph: The fabric (`Graph`).
        src: Number of the first NPU.
        dst: Number of the other NPU.
    """
    links: dict[int, bool] = {}
    here = {src}
    while here:
        ahead = {link for node in here for link in next_links(graph, node, dst)}
        # one link ahead for all equal paths: each of them uses it
        links |= dict.fromkeys(ahead, len(ahead) == 1)
        here = {int(graph.link_dst[link]) for link in ahead} - {dst}
    return links


def _columns(run: Run, schema: Schema, needed_columns: Sequence[str]) -> dict[str, Any] | None:
    """Return columns of a Parquet file, text as lists; None where the file does not exist."""
    table = run.read(schema, needed_columns, _READ.get(schema))
    if table is None:
        return None
    is_name = schema.kinds(needed_columns)
    columns = {}
    for name in table.column_names:
        column = table[name]
        is_text = is_name.get(name) or pa.types.is_dictionary(column.type)
        columns[name] = column.to_pylist() if is_text else numpy_column(column)
        table = table.drop_columns(name)  # not twice in memory
    return columns


def _kind(name: str) -> str:
    return " ".join(re.sub(r"[\d.]+", " ", name).split()) or name


def _of_messages(size_bytes: int | None, time_ps: Int64, slowdown: NDArray[np.float64]) -> dict[str, Any]:
    """Return a row of `completion`; size_bytes: lower limit of its decade, None = all messages."""
    known = slowdown[~np.isnan(slowdown)]
    return {
        "from_bytes": size_bytes,
        "messages": len(time_ps),
        "time_ps": percentiles(time_ps),
        "slowdown": percentiles(known) if len(known) else None,
    }


def percentiles(values: NDArray, percents: Sequence[float] = PERCENTILES) -> dict[str, float | None]:
    """Return each percentile by its name, "p99"; None where there are too few values (et.statistics.timing).

    Args:
        values: float[n], values in any order.
        percents: Percentages from 0 to 100.
    """
    return {f"p{percent:g}": percentile(values, percent) for percent in percents}


def _overlap_ps(pauses: tuple[Int64, Int64], start_ps: int, finish_ps: int) -> int:
    """Return the time of pauses (begins, ends) between start_ps and finish_ps."""
    begins_ps, ends_ps = pauses
    return int(np.maximum(np.minimum(ends_ps, finish_ps) - np.maximum(begins_ps, start_ps), 0).sum())


def network_document(run: NetRun) -> dict[str, Any]:
    """Return links, completion times, spreading pauses and delayed messages as a JSON document.

    Args:
        run: Tables of the run that concern the network (`NetRun`).
    """
    return {
        "topology": run.summary.get("topology"),
        "finish_time_ps": run.summary.get("finish_time_ps"),
        "links": {column: top_links(run.links, column, MAX_LINKS) for column in COLUMNS},
        "messages": completion(run.flows) if run.flows else None,
        **_pauses(run),
    }


def _pauses(run: NetRun) -> dict[str, Any]:
    """Return the trees of pauses and the delayed messages, or the reason why there are no such rows."""
    if run.pauses is None:
        paused = run.links.get("paused_ps")
        why = "no pauses.parquet" if paused is not None and paused.any() else "nothing was paused"
        return {"pauses": 0, "trees": [], "victims": None, "why_no_victims": why}
    all_pauses = find_pauses(run.pauses, int(run.summary.get("finish_time_ps", 0)))
    pauses = Pauses(*(column[:MAX_PAUSES] for column in all_pauses))
    roots = spread(pauses, causes(pauses, run.links), run.links)
    congested = root_links(roots, run.links)
    return {
        "pauses": len(all_pauses.link),
        "pauses_looked_at": len(pauses.link),
        "roots": len(roots),
        "trees": [
            {
                "links": root.size(),
                "whole_paused_ps": root.whole_ps(),
                "congested": [run.links["name"][link] for link in root_links([root], run.links).tolist()],
                **root.as_dict(),
            }
            for root in roots[:MAX_TREES]
        ],
        "congested_links": [run.links["name"][link] for link in congested.tolist()],
        **_victims(run, pauses, congested),
    }


def _victims(run: NetRun, pauses: Pauses, congested_links: Int64) -> dict[str, Any]:
    """Return the delayed messages, or the reason why they are not known."""
    if run.graph is None:
        return {"victims": None, "why_no_victims": run.why_no_graph}
    if run.flows is None:
        return {"victims": None, "why_no_victims": "no flows.parquet"}
    found = victims(run.graph, run.flows, pauses, congested_links)
    rows = [
        {
            "src": int(run.flows["src"][victim.row]),
            "dst": int(run.flows["dst"][victim.row]),
            "bytes": int(run.flows["bytes"][victim.row]),
            "start_ps": int(run.flows["start_ps"][victim.row]),
            "slowdown": None if math.isnan(victim.slowdown) else victim.slowdown,
            "paused_ps": victim.paused_ps,
            "link": run.links["name"][victim.link],
            "sure": victim.is_sure,
        }
        for victim in found[:MAX_VICTIMS]
    ]
    return {"victims_found": len(found), "victims": rows}

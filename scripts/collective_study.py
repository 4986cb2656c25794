"""All-reduce and all-to-all of 64 NPUs on tori, a full mesh and switches, with the bounds that explain each result.

    python scripts/collective_study.py --out collective-study                           up to an hour
    python scripts/collective_study.py --out collective-study --sizes 64KiB:16MiB:x4    two minutes

The questions are those of the first ASTRA-sim paper (Rashidi et al., ISPASS 2020): tori of one, two and three
dimensions against direct links, and a fabric of two levels like a DGX-2's. Every link has the same rate, so fabrics
differ in what an NPU has in all: a 2D torus gives it four links, a full mesh 63. Bus bandwidth is therefore plotted
over the rate of all links of an NPU. Of all-reduce, `all` has one more: rings both ways round in all dimensions at
once, which use every link of a torus. docs/explanation/collectives.md says how to read the results.
"""

import argparse
import csv
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import topologies
from inputs.units import BITS_PER_BYTE
from nadi.configuration.run_file import network_section
from nadi.launching.progress import progress
from nadi.launching.workers import Workers
from nadi.reports.result_files.staging import staged
from nadi.simulation.fidelities import fabric_settings as fabrics
from nadi.simulation.run import network_settings
from nadi.studies.collectives.microbench import ALL, CollectiveCase, SweepRow, choose, measure, parse_sizes
from topologies import DimensionRouting, Graph
from topologies.units import format_bytes

KINDS = ("all-reduce", "all-to-all")
TABLE, PAGE, TEXT = "collective-study.csv", "collective-study.html", "collective-study.md"
EVERY_LINK = "grid:algorithms=ring:bidirectional=true,splits=48,order=themis"
EXPLAINS = 0.8
"""Share of the time from which on something explains it."""
BEGUN = time.perf_counter()


def main() -> None:
    """Run the study."""
    parser = arguments()
    args = parser.parse_args()
    with refused(parser):
        sizes = parse_sizes(args.sizes)
        network = network_section(args.overrides)
        settings = network_settings(network, record_nodes=False, record_flows=False)
        chosen = {name: spec for name, spec in specs(args).items() if name in args.fabrics}
        found: list[Result] = []
        with staged(args.out, files=(TABLE, PAGE, TEXT)) as folder, progress() as shown:
            for name, spec in chosen.items():
                graph = topologies.build(spec)
                fitted = fabrics.fitted(graph, settings)
                for kind in args.kinds:
                    asked = choose(graph, CollectiveCase(kind), args.algorithms, [1, *sizes], sharp_everywhere=True)
                    if kind == "all-reduce" and args.algorithms == ALL:
                        asked.algorithms.append(EVERY_LINK)
                    for each in asked.left_out:
                        say(f"{name}, {kind}: {each.algorithm} is left out: {each.reason}")
                    rows = list(
                        measure(
                            graph,
                            CollectiveCase(kind),
                            asked,
                            [1, *sizes],
                            fitted,
                            shown,
                            Workers(workers=args.workers),
                        )
                    )
                    found += results(name, graph, kind, rows)
                    say(f"{name}, {kind}: {len(rows)} rows")
            text = report(args, found)
            write_csv(folder / TABLE, found)
            (folder / TEXT).write_text(text, encoding="utf-8")
            write_page(folder / PAGE, args, found, text)
    print(text)
    say(f"results: {args.out}")


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, default=Path("collective-study"), metavar="DIR", help="where the results go")
    add("--kinds", nargs="+", default=list(KINDS), choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    add("--sizes", default="64KiB:1GiB:x4", help="bytes of the whole buffer, as for nadi collective")
    add("--algorithms", default=ALL, metavar="NAMES", help="as ring,direct; all are those that nadi has for a kind")
    add("--rate", default="62GB/s", help="of a link, each direction")
    add("--delay", default="500ns", help="of a link")
    add("--near-rate", default="600GB/s", help="two levels: of an NPU inside its box")
    add("--far-rate", default="37.5GB/s", help="two levels: of an NPU between boxes")
    names = list(specs(parser.parse_args([])))
    add("--fabrics", nargs="+", default=names, choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="as network.mtu=1KiB")
    add("--workers", type=int, default=1, metavar="N", help="threads")
    return parser


def specs(args: argparse.Namespace) -> dict[str, str]:
    """The fabrics, all of 64 NPUs, by name."""
    link = f"rate={args.rate},delay={args.delay}"
    rates = f"rates={args.near_rate}_{args.far_rate},delays={args.delay}"
    return {
        "1D torus": f"ring:npus=64,{link}",
        "2D torus": f"torus:sizes=8x8,{link}",
        "3D torus": f"torus:sizes=4x4x4,{link}",
        "full mesh": f"fully-connected:npus=64,{link}",
        "switch": f"switch:npus=64,{link}",
        "two levels": f"stack:dims=Switch(16)_Switch(4),{rates},host_dims=1",
    }


@contextmanager
def refused(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Wrong values end as argparse ends them: one line, exit code 2."""
    try:
        yield
    except ValueError as error:
        if getattr(error, "exit_code", None) != 2:
            raise
        parser.error(str(error))


def say(text: str) -> None:
    """A line of progress."""
    print(f"{time.perf_counter() - BEGUN:6.0f} s  {text}", file=sys.stderr, flush=True)


# Bounds.


@dataclass(frozen=True)
class Cut:
    """A part of the NPUs as large as all others that the fabric can be cut into, and what leaves it.

    Attributes:
        name: in words.
        npus: how many the part has.
        rate_bps: of all links that leave it.
    """

    name: str
    npus: int
    rate_bps: int

    def bound_ps(self, kind: str, npus: int, size_bytes: int) -> float:
        """Picoseconds in which the bytes that must leave the part can.

        All-to-all: a (n-a) blocks of S/n. All-reduce: of g = n/a equal parts each sends at least 2(g-1)/g S where only
        NPUs add (Patarasuk and Yuan, 2009, with parts for nodes).
        """
        parts = npus / self.npus
        if kind == "all-to-all":
            leaving = self.npus * (npus - self.npus) * size_bytes / npus
        else:
            leaving = 2 * (parts - 1) / parts * size_bytes
        return leaving * 8e12 / self.rate_bps


def cuts(graph: Graph) -> list[Cut]:
    """One NPU alone; where there are dimensions, the halves and single slices of each."""
    own = int(graph.link_rate_bps[graph.link_src == 0].sum())
    found = [Cut("links of an NPU", 1, own)]
    routing = graph.routing
    if not isinstance(routing, DimensionRouting):
        return found
    for d, size in enumerate(graph.dims):
        digit = routing.digit[:, d]
        words = f" of dimension {d + 1}" if len(graph.dims) > 1 else ""
        for name, width in ((f"bisection{words}", size // 2), (f"one slice{words}", 1)):
            inside = (digit >= 0) & (digit < width)
            leaves = inside[graph.link_src] & ~inside[graph.link_dst]
            rate_bps = int(graph.link_rate_bps[leaves].sum())
            found.append(Cut(name, graph.npus * width // size, rate_bps))
    return found


def distance_ps(graph: Graph) -> int:
    """Delays and switch latencies from NPU 0 to the NPU farthest from it: nothing that all need is faster."""
    longest = 0
    for other in range(1, graph.npus):
        links = np.array(topologies.route(graph, 0, other))
        between = graph.node_latency_ps[graph.link_src[links[1:]]]
        longest = max(longest, int(graph.link_delay_ps[links].sum() + between.sum()))
    return longest


@dataclass(frozen=True)
class Result:
    """A row of the study.

    Attributes:
        fabric: its name here.
        links: that leave an NPU.
        links_Bps: their rate in all.
        row: what was measured.
        empty_ps: the same collective with one byte, measured.
        distance_ps: latency bound: to the farthest NPU.
        cut: the tightest one, and
        cut_ps: bandwidth bound: what must cross it.
    """

    fabric: str
    links: int
    links_Bps: float  # noqa: N815 - bytes, not bits
    row: SweepRow
    empty_ps: int
    distance_ps: int
    cut: str
    cut_ps: float

    def why(self) -> str:
        """What explains the time, in words."""
        time_ps, row = self.row.time_ps, self.row
        empty, crossing = self.empty_ps / time_ps, self.cut_ps / time_ps
        if empty >= EXPLAINS:
            return f"latency: one byte takes {empty:.0%} of it"
        if crossing >= EXPLAINS:
            return f"bandwidth: {self.cut}, {crossing:.0%} of it"
        if empty + crossing >= EXPLAINS:
            return f"latency ({empty:.0%}) and bandwidth ({self.cut}, {crossing:.0%}) together"
        links = f"its busiest link sends for {row.busiest_link:.0%} of it, all links for {row.mean_link:.0%}"
        if row.busiest_link >= EXPLAINS:
            return f"no bound ({crossing:.0%}) but the algorithm: {links}"
        if empty + row.busiest_link >= EXPLAINS:
            return f"latency ({empty:.0%}) and the algorithm: {links}"
        return f"waiting: latency {empty:.0%}, bandwidth {crossing:.0%}; {links}"


def results(name: str, graph: Graph, kind: str, rows: Sequence[SweepRow]) -> list[Result]:
    """Rows with their bounds; those of one byte give the others' latency."""
    own = graph.link_src == 0
    links, links_Bps = int(own.sum()), float(graph.link_rate_bps[own].sum()) / BITS_PER_BYTE  # noqa: N806 - bytes, not bits
    empty_ps = {row.algorithm: row.time_ps for row in rows if row.bytes == 1}
    far_ps, of_fabric, found = distance_ps(graph), cuts(graph), []
    for row in rows:
        if row.bytes > 1:
            bounds = {cut.name: cut.bound_ps(kind, graph.npus, row.bytes) for cut in of_fabric}
            cut = max(bounds, key=bounds.__getitem__)
            found.append(Result(name, links, links_Bps, row, empty_ps[row.algorithm], far_ps, cut, bounds[cut]))
    return found


# Written.


def columns(result: Result) -> dict[str, Any]:
    """A line of the CSV file."""
    return {
        "fabric": result.fabric,
        "links_per_npu": result.links,
        "links_Bps_per_npu": result.links_Bps,
        **result.row._asdict(),
        "one_byte_ps": result.empty_ps,
        "latency_bound_ps": result.distance_ps,
        "bandwidth_bound": result.cut,
        "bandwidth_bound_ps": round(result.cut_ps),
        "why": result.why(),
    }


def write_csv(path: Path, found: Sequence[Result]) -> None:
    """All results."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns(found[0]))
        writer.writeheader()
        writer.writerows(columns(result) for result in found)


def report(args: argparse.Namespace, found: Sequence[Result]) -> str:
    """Markdown: the fabrics, then for each kind a table of all results, and which fabric and algorithm is fastest."""
    lines = [f"# {' and '.join(args.kinds)} of 64 NPUs", ""]
    lines += ["| fabric | links of an NPU | their rate in all GB/s | spec |", "| --- | --- | --- | --- |"]
    of_fabric = {result.fabric: result for result in found}
    for name, result in of_fabric.items():
        lines.append(f"| {name} | {result.links} | {result.links_Bps / 1e9:g} | `{specs(args)[name]}` |")
    for kind in args.kinds:
        lines += ["", f"## {kind}", ""]
        heads = (
            "fabric",
            "algorithm",
            "bytes",
            "time µs",
            "busbw GB/s",
            "latency bound µs",
            "bandwidth bound µs",
            "why",
        )
        lines += [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
        own = [result for result in found if result.row.kind == kind]
        lines += [_line(result) for result in own]
        for size in (own[0].row.bytes, own[-1].row.bytes):
            best = min((result for result in own if result.row.bytes == size), key=lambda result: result.row.time_ps)
            lines += ["", f"Fastest at {format_bytes(size)}: {best.fabric}, {best.row.algorithm}: {best.why()}."]
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    row = result.row
    cells = (
        result.fabric,
        row.algorithm,
        format_bytes(row.bytes),
        f"{row.time_ps / 1e6:,.3f}",
        f"{row.busbw_Bps / 1e9:,.2f}",
        f"{result.distance_ps / 1e6:,.3f}",
        f"{result.cut_ps / 1e6:,.3f} ({result.cut})",
        result.why(),
    )
    return f"| {' | '.join(cells)} |"


def write_page(path: Path, args: argparse.Namespace, found: Sequence[Result], text: str) -> None:
    """Pictures of all results and the text in one page."""
    if importlib.util.find_spec("plotly") is None:
        say("no pictures: plotly is not installed; pip install 'nadi[plot]'")
        return
    import html  # noqa: PLC0415 - of the page only

    from plotly.io import to_html  # noqa: PLC0415 - an extra

    drawn = [figure for kind in args.kinds for figure in figures(kind, [r for r in found if r.row.kind == kind])]
    parts = [to_html(each, full_html=False, include_plotlyjs=number == 0) for number, each in enumerate(drawn)]
    head = "<!doctype html><meta charset='utf-8'><title>Collective study</title>"
    path.write_text(f"{head}{''.join(parts)}<pre>{html.escape(text)}</pre>", encoding="utf-8")


def figures(kind: str, found: Sequence[Result]) -> Iterator[Any]:
    """Time over size with the bounds dashed, and bus bandwidth of the largest size over what an NPU's links carry."""
    from plotly import colors  # noqa: PLC0415 - an extra
    from plotly import graph_objects as go  # noqa: PLC0415 - an extra

    names = list(dict.fromkeys(result.fabric for result in found))
    colour = dict(zip(names, (colors.qualitative.D3 * len(names))[: len(names)], strict=True))
    axes = {"xaxis": {"type": "log", "title": "bytes"}, "yaxis": {"type": "log", "title": "µs"}}
    over_size = go.Figure(layout={"title": f"{kind} of 64 NPUs: time, and bounds dashed", **axes})
    marks = dict(zip(dict.fromkeys(result.row.algorithm for result in found), range(50), strict=False))
    for name in names:
        for algorithm, mark in marks.items():
            own = [result for result in found if (result.fabric, result.row.algorithm) == (name, algorithm)]
            line = {"x": [each.row.bytes for each in own], "y": [each.row.time_ps / 1e6 for each in own]}
            style = {"line": {"color": colour[name]}, "marker": {"symbol": mark}, "legendgroup": name}
            over_size.add_scatter(**line, **style, name=f"{name}, {algorithm}", mode="lines+markers")
        own = [each for each in found if each.fabric == name and each.row.algorithm == found[0].row.algorithm]
        bound = [max(each.distance_ps, each.cut_ps) / 1e6 for each in own]
        style = {"line": {"color": colour[name], "dash": "dash"}, "legendgroup": name}
        over_size.add_scatter(x=[each.row.bytes for each in own], y=bound, **style, name=f"{name}, bound", mode="lines")
    yield over_size
    largest = max(result.row.bytes for result in found)
    axes = {
        "xaxis": {"type": "log", "title": "rate of all links of an NPU, GB/s"},
        "yaxis": {"type": "log", "title": "bus bandwidth, GB/s"},
    }
    over_rate = go.Figure(layout={"title": f"{kind} of {format_bytes(largest)}: what the links give", **axes})
    for algorithm, mark in marks.items():
        own = [each for each in found if (each.row.algorithm, each.row.bytes) == (algorithm, largest)]
        points = {"x": [each.links_Bps / 1e9 for each in own], "y": [each.row.busbw_Bps / 1e9 for each in own]}
        words = {"text": [each.fabric for each in own], "textposition": "top center"}
        over_rate.add_scatter(**points, **words, marker={"symbol": mark}, name=algorithm, mode="markers+text")
    ends = sorted({result.links_Bps / 1e9 for result in found})
    over_rate.add_scatter(x=ends, y=ends, name="all links always full", mode="lines", line={"dash": "dash"})
    yield over_rate


if __name__ == "__main__":
    main()

"""`nadi trace graph`: draw the dependencies of a trace."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson, NodeIds, NodeNames, NpuNumbers, named_path, number_ranges
from nadi.cli.output import print_json
from nadi.errors import ConfigError
from nadi.launching.ending import unwound
from nadi.terminal import say

_MAX_NODES = {".svg": 200, ".dot": 1000, ".graphml": 100_000}  # Default number of nodes by file format

_OUT = "FILE.svg, .dot (Graphviz) or .graphml."
_AROUND = "Id of a node to show with its neighbourhood."
_MOST = "Maximum number of nodes.  [default: 200, .dot 1000, .graphml 100000]"


def graph(
    path: Path = typer.Argument(metavar="PREFIX|DIR|FILE", help="Trace, or traces of several NPUs."),
    out: Path = typer.Option(..., "-o", "--out", metavar="FILE", parser=named_path, help=_OUT),
    name: NodeNames = [],
    nodes: NodeIds = "",
    around: int | None = typer.Option(None, "--around", min=0, metavar="ID", help=_AROUND),
    hops: int = typer.Option(2, "--hops", min=0, metavar="N", help="Radius of the neighbourhood in dependencies."),
    npus: NpuNumbers = "",
    most: int | None = typer.Option(None, "--most", min=1, max=1_000_000, metavar="N", help=_MOST),
    as_json: AsJson = False,
) -> None:
    """Draw nodes and dependencies, only the first ones of a large trace, and print what is left out."""
    from nadi.et.framing import write_frames
    from nadi.et.views import NodeFilter, drawn, picture
    from nadi.workload.trace_sets import read_ranks

    ending = out.suffix.lower()
    if ending not in _MAX_NODES:
        raise ConfigError(f"-o {out}: found {out.suffix or 'no ending'!r}; expected .svg, .dot or .graphml")
    wanted = NodeFilter(tuple(name) or None, number_ranges("--nodes", nodes), around, hops)
    chosen = number_ranges("--npus", npus)
    with unwound():
        ranks = read_ranks(path)
        shown = [rank for rank in ranks if chosen is None or any(a <= rank.npu <= b for a, b in chosen)]
        if not shown:
            raise ConfigError(f"--npus {npus}: no trace in {path} is of these; expected some of its {len(ranks)} NPUs")
        found = picture(shown, wanted, most or _MAX_NODES[ending])
        write_frames(out, (text.encode() for text in drawn(found, ending.removeprefix("."))))
    if as_json:
        counts = {"nodes": len(found.nodes), "edges": len(found.edges), "left_out": found.left_out, "cut": found.cut}
        print_json({"path": str(out), **counts, "notes": found.notes()}, indent=None)
        return
    say(f"{out}: {len(found.nodes):,} nodes, {len(found.edges):,} arrows")
    for note in found.notes():
        say(f"  {note}")

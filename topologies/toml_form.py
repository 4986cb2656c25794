"""Writer of the TOML form that topology `file` reads; `topologies.builders.file` describes the form."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from inputs import whole_file
from topologies.dimension_routing import dimensions_of, format_dimensions
from topologies.errors import TopologyError
from topologies.graph import NVSWITCH, DimensionRouting, Graph
from topologies.units import format_rate, format_time


def write_toml(graph: Graph, path: str | Path) -> None:
    """Write, completely or not at all, the form that topology `file` reads; TopologyError if that is impossible."""
    target = Path(path)
    try:
        with whole_file(target) as file:
            file.writelines(f"{line}\n".encode() for line in _toml(graph))
    except OSError as error:
        raise TopologyError(f"cannot write {target}: {error.strerror}; expected the name of a file") from None


def _toml(graph: Graph) -> Iterator[str]:
    """Yield the lines of a network's TOML file."""
    yield f"# {json.dumps(graph.name)}, written by nadi"  # a path may hold bytes that are not UTF-8
    yield f"npus = {graph.npus}"
    yield f"dims = {list(graph.dims)}"
    if isinstance(graph.routing, DimensionRouting):
        yield f'stack = "{format_dimensions(dimensions_of(graph.routing))}"'
    yield f"host = {graph.host.tolist()}"
    yield f"pods = {graph.pod[: graph.npus].tolist()}"
    if graph.accelerator:
        yield f"accelerator = {json.dumps(graph.accelerator, ensure_ascii=False)}"
    for node, name in enumerate(graph.switch_names, graph.npus):
        yield ""
        yield "[[switches]]"
        yield f"name = {_quoted(name)}"
        yield f'kind = "{"nvswitch" if graph.node_kind[node] == NVSWITCH else "switch"}"'
        yield f'latency = "{format_time(int(graph.node_latency_ps[node]))}"'
        yield f"pod = {graph.pod[node]}"
    yield from _toml_links(graph)


def _quoted(name: str) -> str:
    """Return a TOML string: as in JSON, except for the one control character that JSON leaves as it is."""
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_links(graph: Graph) -> Iterator[str]:
    """Yield the lines of a network's cables in TOML; consecutive ones with the same rate and delay share a table."""
    rate_bps, delay_ps = graph.link_rate_bps[::2], graph.link_delay_ps[::2]
    pairs = np.stack([graph.link_src[::2], graph.link_dst[::2]], axis=1).tolist()
    changes = np.flatnonzero((np.diff(rate_bps) != 0) | (np.diff(delay_ps) != 0)) + 1
    bounds = [0, *changes.tolist(), len(pairs)]
    for begin, end in pairwise(bounds):
        if begin == end:
            continue
        yield ""
        yield "[[links]]"
        yield f'rate = "{format_rate(int(rate_bps[begin]))}"'
        yield f'delay = "{format_time(int(delay_ps[begin]))}"'
        yield "cables = ["
        yield from (
            f"    {pairs[i : min(i + 8, end)]},".replace("[[", "[").replace("]]", "]") for i in range(begin, end, 8)
        )
        yield "]"

"""A network from a TOML file of switches and links.

    npus = 4                    # nodes 0 to 3, "npu 0" to "npu 3"
    dims = [2, 2]               # logical dimensions, fastest first; this key and the next five are optional
    host = [0, 0, 1, 1]         # server of each NPU
    pods = [0, 0, 1, 1]         # pod of each NPU, -1 = none
    accelerator = "h100"        # model of the NPUs
    npus_per_nic = 2            # consecutive NPUs of a server whose links are equal parts of one NIC
    stack = "Ring(4)"           # route by dimensions: links then join exactly the neighbours of that `stack`

    [[switches]]                # nodes 4, 5, ... in this order
    name = "leaf 0"             # "switch 0" if left out
    kind = "switch"             # or "nvswitch", a switch within a server
    latency = "300ns"           # forwarding latency
    pod = 0
    group = 0                   # group for routing that is not minimal, as of a dragonfly; -1 = none

    [[links]]                   # cables, in this order
    rate = "100Gbps"
    delay = "1us"
    count = 1                   # parallel cables of each pair
    cables = [["npu 0", "leaf 0"], [1, 4]]   # pairs of names or node numbers

Without `stack`, NPUs may be linked to switches only, and the switches must connect all NPUs.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from nadi import inputs
from nadi.inputs import whole_file
from nadi.inputs.documents import checked, read_toml, refuse_other_kinds
from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import format_rate, format_time
from nadi.topologies.dimension_routing import Hierarchy, lay_out
from nadi.topologies.graph import NVSWITCH, SWITCH, Extent, Graph, TopologyError, of_cables
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.parameters import Count, Dimensions, FilePath, Parameters, Rate, Sizes, Time

_EXPECTED = "a fabric (TOML with npus and links)"
_NPU = re.compile(r'"?(?:npu )?(\d{1,9})"?')
_PAIR = re.compile(r'\[\s*(\d{1,9}|"[^"\n]*")\s*,\s*(\d{1,9}|"[^"\n]*")\s*\]')
_SWITCHES = re.compile(r"^[ \t]*+\[\[[ \t]*+switches[ \t]*+\]\]", re.MULTILINE)
_LINKS = re.compile(r"^[ \t]*+\[\[[ \t]*+links[ \t]*+\]\]", re.MULTILINE)


class Arguments(Parameters):
    """Parameters of a network in a file."""

    path: FilePath = Field(description="a TOML file, as `nadi topology build` writes it")


def _parse_cables(value: object) -> object:
    """Return a list of cables after a check that each is a pair; a pydantic model per cable would take seconds."""
    for pair in value if isinstance(value, list) else [value]:
        ends = pair if isinstance(pair, list) else []
        if len(ends) != 2 or not all(isinstance(end, int | str) for end in ends):
            raise TopologyError(f"{pair!r} is no cable; expected a pair of names or node numbers")
    return value


_Pod = Annotated[int, Field(ge=-1, le=MAX_NODES)]


class _Switch(Parameters):
    name: str | None = None
    kind: Literal["switch", "nvswitch"] = "switch"
    latency: Time = 0
    pod: _Pod = -1
    group: _Pod = -1


class _Links(Parameters):
    rate: Rate = Field(description="a rate, as 400Gbps")
    delay: Time = Field(description="a time, as 500ns")
    count: Count = 1
    cables: Annotated[list[Any], BeforeValidator(_parse_cables)] = Field(description="a list of pairs of nodes")


class _File(Parameters):
    npus: Count = Field(description="number of NPUs")
    dims: Sizes = ()
    host: list[Annotated[int, Field(ge=0, le=MAX_NODES)]] | None = None
    pods: list[_Pod] | None = None
    accelerator: str = ""
    npus_per_nic: Count = 1
    stack: Dimensions | None = None
    switches: list[_Switch] = Field([])
    links: list[_Links] = Field([])


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network of the file.

    Raises TopologyError: the file is unreadable or no TOML, a key or node is unknown, a value has another form, or the
    network cannot be routed.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    content = checked(_File, _read(Path(arguments.path)), name, TopologyError)
    names = [s.name or f"switch {i}" for i, s in enumerate(content.switches)]
    builder = GraphBuilder(name, content.npus)
    if content.pods is not None:
        if len(content.pods) != content.npus:
            raise TopologyError.at(name, f"pods has {len(content.pods)} entries", f"{content.npus}, one for each NPU")
        builder.set_npu_pods(content.pods)
    builder.add_named_switches(
        names,
        latency_ps=[s.latency for s in content.switches],
        kind=[NVSWITCH if s.kind == "nvswitch" else SWITCH for s in content.switches],
        pod=[s.pod for s in content.switches],
        group=[s.group for s in content.switches],
    )
    node_of = _node_numbers(content.npus, names, name)
    for i, links in enumerate(content.links):
        try:
            ends = np.array([(node_of[a], node_of[b]) for a, b in links.cables], np.int64).reshape(-1, 2)
        except KeyError as error:
            raise TopologyError(
                f"{name}: links.{i}: unknown node {error.args[0]!r}; "
                "expected the name of a switch, 'npu N' or a node's number"
            ) from None
        builder.add_cables(ends[:, 0], ends[:, 1], links.rate, links.delay, links.count)
    layout = _layout(content, builder.nodes, name)
    return builder.graph(
        dims=content.dims,
        host=content.host,
        layout=layout,
        accelerator=content.accelerator,
        npus_per_nic=content.npus_per_nic,
    )


def estimate(arguments: Arguments) -> Extent | None:
    """Return the size of the network of the file; None if building it will report an error.

    Args:
        arguments: The parameters of the network.
    """
    if inputs.type_of(arguments.path):
        return None
    try:
        text = inputs.read_text(arguments.path)
    except (OSError, ValueError):
        return None
    # a parser of TOML takes seconds for a million cables, regular expressions do not; `build` reports errors
    npus = re.search(r"^npus\s*=\s*(\d{1,9})\s*(#|$)", text, re.MULTILINE)
    if npus is None:
        return None
    switches = len(_SWITCHES.findall(text))
    size = of_cables(int(npus[1]), switches, _cables(text, int(npus[1])), len(text))
    by_dimensions = re.search(r"^stack\s*=", text, re.MULTILINE)
    # routing by dimensions computes the next link from digits and has no table of homes
    return size._replace(homes=0) if by_dimensions else size


def _cables(text: str, npus: int) -> Iterator[tuple[int, int, int]]:
    """Yield the two ends of cables in a file's text, switches numbered from `npus` on, and how many are parallel."""
    number: dict[str, int] = {}
    for block in _LINKS.split(text)[1:]:
        count = re.search(r"^count\s*=\s*(\d{1,7})", block, re.MULTILINE)
        for pair in _PAIR.finditer(block):
            a, b = (
                int(npu[1]) if (npu := _NPU.fullmatch(end)) else number.setdefault(end, npus + len(number))
                for end in pair.groups()
            )
            yield a, b, int(count[1]) if count else 1


def _read(path: Path) -> dict[str, Any]:
    """Return the TOML content of a file; a file of another known kind is refused by the name of its kind."""
    tree = read_toml(path, _EXPECTED, TopologyError, "fabric")
    if "npus" not in tree:
        refuse_other_kinds(path, _EXPECTED, TopologyError, "fabric", "text")  # nothing but comments
    return tree


def _node_numbers(npus: int, switch_names: Sequence[str], label: str) -> dict[int | str, int]:
    """Return the numbers of all nodes, by name and by number; label: name of the network, with which errors begin."""
    node_of: dict[int | str, int] = {i: i for i in range(npus + len(switch_names))}
    node_of |= {f"npu {i}": i for i in range(npus)}
    for i, switch in enumerate(switch_names):
        if switch in node_of:
            raise TopologyError.at(label, f"switches.{i}: name {switch!r} is taken", "another one")
        node_of[switch] = npus + i
    return node_of


def _layout(content: _File, nodes: int, label: str) -> Hierarchy | None:
    """Return the layout of a file's stack of dimensions for `nodes` nodes, None without a stack."""
    if content.stack is None:
        return None
    try:
        layout = lay_out(content.stack)
    except TopologyError as error:
        raise TopologyError(f"{label}: stack: {error}") from None
    if (layout.npus, layout.nodes) != (content.npus, nodes):
        raise TopologyError(
            f"{label}: {content.npus} NPUs and {nodes - content.npus} switches; "
            f"expected {layout.npus} and {layout.nodes - layout.npus} for the stack"
        )
    return layout


def write_toml(graph: Graph, path: str | Path) -> None:
    """Write, completely or not at all, the form that topology `file` reads; TopologyError if that is impossible.

    Args:
        graph: The network to write.
        path: The file to write; an existing one is replaced.
    """
    target = Path(path)
    with inputs.refusing(f"cannot write {target}", "the name of a file", TopologyError), whole_file(target) as file:
        file.writelines(f"{line}\n".encode() for line in _toml(graph))


def _toml(graph: Graph) -> Iterator[str]:
    """Yield the lines of a network's TOML file."""
    yield f"# {json.dumps(graph.name)}, written by nadi"  # a path may hold bytes that are not UTF-8
    yield f"npus = {graph.npus}"
    yield f"dims = {list(graph.dims)}"
    if graph.routing.stack:
        yield f'stack = "{graph.routing.stack}"'
    yield f"host = {graph.host.tolist()}"
    yield f"pods = {graph.pod[: graph.npus].tolist()}"
    if graph.accelerator:
        yield f"accelerator = {json.dumps(graph.accelerator, ensure_ascii=False)}"
    if graph.npus_per_nic > 1:
        yield f"npus_per_nic = {graph.npus_per_nic}"
    for node, name in enumerate(graph.switch_names, graph.npus):
        yield ""
        yield "[[switches]]"
        yield f"name = {_quoted(name)}"
        yield f'kind = "{"nvswitch" if graph.node_kind[node] == NVSWITCH else "switch"}"'
        yield f'latency = "{format_time(int(graph.node_latency_ps[node]))}"'
        yield f"pod = {graph.pod[node]}"
        if graph.group[node] >= 0:
            yield f"group = {graph.group[node]}"
    yield from _toml_links(graph)


def _quoted(name: str) -> str:
    """Return a TOML string: as in JSON, except for the one control character that JSON leaves as it is."""
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_links(graph: Graph) -> Iterator[str]:
    """Yield the lines of a network's cables in TOML; consecutive ones with the same rate and delay share a table."""
    # links 2c and 2c + 1 are the two directions of cable c, so every second link stands for a cable
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
        # eight cables to a line: one per line would make files of large fabrics long, and one line for all unreadable
        yield from (
            f"    {pairs[i : min(i + 8, end)]},".replace("[[", "[").replace("]]", "]") for i in range(begin, end, 8)
        )
        yield "]"

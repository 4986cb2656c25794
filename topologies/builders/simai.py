"""SimAI's topology text: GPUs, NVSwitches, switches and links.

Line 1 holds `nodes gpus_per_server nvswitches switches links gpu_type` (or, in the form of ASTRA-sim's ns-3 backend,
`nodes switches links`); the GPU type selects NCCL's constants. Line 2 holds the numbers of all switches, first those of
the `nvswitches` NVSwitches; one line `source destination rate delay error_rate` per cable follows. All other nodes are
GPUs. As in ns-3, what follows the links that line 1 counts is not read.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from nadi import inputs
from nadi.inputs.files import unread
from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import parse_delay, parse_link_rate
from nadi.topologies.graph import NVSWITCH, SWITCH, Extent, Graph, TopologyError, of_cables
from nadi.topologies.graph_builder import GraphBuilder
from nadi.topologies.hosts import GENERATIONS
from nadi.topologies.parameters import FilePath, Parameters, Sizes, Time

NAME = "simai"
_FULL_HEADER, _SHORT_HEADER = 6, 3
_MAX_DIGITS = 12
_MODELS = {"NONE": "", **{model.upper(): model for model in GENERATIONS}, "A800": "a100", "H800": "h100"}
_LEFT_OUT = -1  # node of a GPU that the fabric lacks


class Arguments(Parameters):
    """Parameters of a network in SimAI's text."""

    path: FilePath = Field(description="path of the file")
    switch_latency: Time = Field(0, description="forwarding latency of a switch")
    nvswitch_latency: Time = Field(0, description="forwarding latency of an NVSwitch")
    dims: Sizes = Field(
        (),
        description="logical dimensions of the first GPUs, fastest first; other GPUs are left out; default: one of all",
    )
    parallel_links: Literal["all", "last"] = Field(
        "all", description='which of several links between two nodes exist; "last" = as in ns-3, whose routing uses one'
    )


def build(arguments: Arguments, name: str) -> Graph:
    """Build the network of the file. GPUs, then switches, keep their order; names hold the numbers of the file.

    Raises TopologyError: the file is unreadable, it has fewer links or another number of switches than in the header,
    a node is unknown, a link loses packets, or the network cannot be routed.

    Args:
        arguments: The parameters of the network.
        name: The name of the network, with which errors begin.
    """
    lines = _read(arguments.path, name)
    nodes, per_server, nvswitches, switches, links = _header(lines, name)
    if nodes > MAX_NODES:
        raise TopologyError.at(name, f"line 1: {nodes} nodes", f"at most {MAX_NODES}")
    switch = _switch_numbers(lines, name, nodes, nvswitches, switches)
    # nodes that line 2 does not list are GPUs, in ascending order
    gpus = np.setdiff1d(np.arange(nodes), switch)
    if math.prod(arguments.dims or (0,)) > len(gpus):
        sizes = "x".join(map(str, arguments.dims))
        raise TopologyError.at(name, f"dims {sizes} for {len(gpus)} GPUs", "at most as many")
    gpus = gpus[: math.prod(arguments.dims)] if arguments.dims else gpus
    # line 2 begins with the NVSwitches
    kind = np.where(np.arange(len(switch)) < nvswitches, NVSWITCH, SWITCH)

    builder = GraphBuilder(name, len(gpus))
    latency = np.where(kind == NVSWITCH, arguments.nvswitch_latency, arguments.switch_latency)
    names = [f"{'nvswitch' if k == NVSWITCH else 'switch'} {number}" for k, number in zip(kind, switch, strict=True)]
    builder.add_named_switches(names, latency_ps=latency, kind=kind)
    # the file mixes numbers of GPUs and switches; a graph has NPUs first
    node_of = np.full(nodes, _LEFT_OUT)
    node_of[np.concatenate([gpus, switch])] = np.arange(len(gpus) + len(switch))
    numbered = [(number, line) for number, line in enumerate(lines[2:], 3) if line.strip()]
    cables = [_cable(line, f"{name}: line {number}", nodes) for number, line in numbered[:links]]
    if len(cables) < links:
        raise TopologyError.at(name, f"{len(cables)} links found", f"{links} of the header")
    if arguments.parallel_links == "last":
        # a dict keeps the last value of a key, as ns-3's routing keeps the last link between two nodes
        cables = list({(min(cable[:2]), max(cable[:2])): cable for cable in cables}.values())
    if cables:
        a, b, rate_bps, delay_ps = np.array(cables, np.int64).T
        # with `dims` only the first GPUs exist; the cables of the others go with them
        kept = (node_of[a] != _LEFT_OUT) & (node_of[b] != _LEFT_OUT)
        builder.add_cables(node_of[a][kept], node_of[b][kept], rate_bps[kept], delay_ps[kept])
    per_host = per_server if nvswitches else 1
    dims = (per_host, len(gpus) // per_host) if len(gpus) % per_host == 0 and 1 < per_host < len(gpus) else ()
    gpu_type = lines[0].split()[-1] if nvswitches else "NONE"
    model = _MODELS.get(gpu_type.upper())
    graph = builder.graph(dims=arguments.dims or dims, host=np.arange(len(gpus)) // per_host, accelerator=(model or ""))
    warnings = unread(arguments.path, numbered[links:], f"{links} links")
    if model is None:
        warnings += (f"{name}: gpu_type {gpu_type[:40]!r} is unknown: NCCL's constants follow from the rate of NVLink",)
    # from the names, as the graph may have fewer switches than the file: parallel NVSwitches are one
    numbers = [*gpus.tolist(), *(int(title.split()[1]) for title in graph.switch_names)]
    return replace(graph, numbers=tuple(numbers), warnings=warnings)


def estimate(arguments: Arguments) -> Extent | None:
    """Return the size of the network of the file; None if building it will report an error.

    Args:
        arguments: The parameters of the network.
    """
    if inputs.type_of(arguments.path):
        return None
    try:
        lines = _read(arguments.path, NAME)
        nodes, _, _, switches, links = _header(lines, NAME)
        is_switch = set(map(int, lines[1].split()))
        ends = (line.split(maxsplit=2)[:2] for line in [line for line in lines[2:] if line.strip()][:links])
        pairs = (tuple(map(int, pair)) for pair in ends)
        # Switches get numbers above those of all GPUs.
        cables = ((a + nodes * (a in is_switch), b + nodes * (b in is_switch), 1) for a, b in pairs)
        size = of_cables(nodes, switches, cables, sum(map(len, lines)))
    except (TopologyError, ValueError, IndexError):
        return None
    return size._replace(npus=math.prod(arguments.dims) if arguments.dims else max(nodes - switches, 0))


def _read(path: str, label: str) -> list[str]:
    """Return the lines of a file in SimAI's text; label: name of the network, with which errors begin."""
    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"simai-topology", "text", "csv", "empty"}:
        raise TopologyError(inputs.complaint(path, kind, "a topology (SimAI's text)"))
    try:
        return inputs.read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise TopologyError(f"{label}: cannot read {path}: {reason}") from None


def _header(lines: Sequence[str], label: str) -> tuple[int, int, int, int, int]:
    """Return the numbers of nodes, GPUs per server, NVSwitches, switches and links in a file's first line."""
    words = lines[0].split() if lines else []
    numbers = words[: _FULL_HEADER - 1]
    if len(words) not in {_FULL_HEADER, _SHORT_HEADER} or not all(map(_is_number, numbers)):
        raise TopologyError(
            f"{label}: line 1: {' '.join(words)[:80]!r} is no header; "
            "expected: nodes gpus_per_server nvswitches switches links gpu_type, or nodes switches links"
        )
    if len(words) == _SHORT_HEADER:
        nodes, switches, links = map(int, numbers)
        return nodes, 1, 0, switches, links
    nodes, per_server, nvswitches, switches, links = map(int, numbers)
    if per_server < 1:
        raise TopologyError.at(label, "line 1: gpus_per_server = 0", "1 or more")
    return nodes, per_server, nvswitches, switches, links


def _is_number(word: str) -> bool:
    """Return whether a word is a whole number with no more digits than numbers of nodes and links may have."""
    return word.isdecimal() and len(word) <= _MAX_DIGITS


def _switch_numbers(lines: Sequence[str], label: str, nodes: int, nvswitches: int, switches: int) -> np.ndarray:
    """Return int[], the numbers of the NVSwitches, then of the other switches, each ascending."""
    words = lines[1].split() if len(lines) > 1 else []
    numbers = sorted({int(word) for word in words if _is_number(word) and int(word) < nodes})
    expected = nvswitches + switches
    if not len(numbers) == len(words) == expected:
        raise TopologyError(
            f"{label}: line 2: {len(numbers)} different switches of {len(words)} entries; "
            f"expected {expected} numbers below {nodes}, {nvswitches} NVSwitches and {switches} switches of the header"
        )
    return np.array([*sorted(map(int, words[:nvswitches])), *sorted(map(int, words[nvswitches:]))], np.int64)


def _cable(line: str, label: str, nodes: int) -> tuple[int, int, int, int]:
    """Return the two ends, rate in bps and delay in ps of a line's cable; label: place of the line, for errors."""
    words = line.split()
    if len(words) != 5 or not (_is_number(words[0]) and _is_number(words[1])):
        raise TopologyError(f"{label}: {line.strip()[:80]!r}; expected: source destination rate delay error_rate")
    a, b = int(words[0]), int(words[1])
    if max(a, b) >= nodes:
        raise TopologyError.at(label, f"node {max(a, b)}", f"a number below {nodes}")
    try:
        rate_bps, delay_ps, error_rate = parse_link_rate(words[2]), parse_delay(words[3]), float(words[4])
    except ValueError as error:
        raise TopologyError(f"{label}: {error}") from None
    if error_rate != 0:
        raise TopologyError.at(label, f"error rate {words[4]}", "0, as links that lose packets are not modelled")
    return a, b, rate_bps, delay_ps

"""Networks of ASTRA-sim, by back end.

Analytical: topology, NPUs, bandwidth and latency of each dimension. Source: astra-sim/astra-network-analytical.
Bandwidths are in GB/s of 2^30 bytes, latencies in ns, both of one link.

ns-3: config.txt or config.json, the physical topology that it names, and logical dimensions. Source:
astra-sim/astra-sim, network_frontend/ns3/AstraSimNetwork.cc and examples/network/ns3. The module nadi.importers.ns3 has
the meanings of the keys.

htsim: a .topo file for the fabric, and an analytical network for the logical dimensions. Source: astra-sim/astra-sim,
network_frontend/htsim/HTSimMain.cc and proto/HTSimProtoTcp.cc.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, model_validator

from nadi import topologies
from nadi.errors import ConfigError
from nadi.importers import FileSections
from nadi.importers.files import PeerFile, find_named, parsed, read_model, read_text
from nadi.importers.ns3 import Ns3Config, ns3_part, read_ns3
from nadi.inputs.limits import MAX_NODES
from nadi.inputs.units import GIB, PS_PER_NS, format_rate, format_time

EXPECTED = "a network of ASTRA-sim: topology, npus_count, bandwidth and latency of each dimension (YAML or JSON)"
MAX_DIMENSIONS = 16
_EXPECTED = "a configuration of ASTRA-sim's ns-3 back end (KEY value per line, or JSON)"
_LOGICAL = 'the logical topology of ns-3, as {"logical-dims": ["8", "2"]}'
_KEY_LINE = re.compile(r"\A\s*+[A-Z][A-Z0-9_]*+[ \t]")
_JSON_NAMES = {
    "payload_size": "PACKET_PAYLOAD_SIZE",
    "stop_time": "SIMULATOR_STOP_TIME",
    "start": "QLEN_MON_START",
    "end": "QLEN_MON_END",
}
_LINK_DOWN = ("link_down_time", "link_down_a", "link_down_b")
_ALGORITHMS = ("UNCOUPLED", "COUPLED_INC", "FULLY_COUPLED", "COUPLED_TCP", "COUPLED_SCALABLE_TCP", "COUPLED_EPSILON")
_WITH_VALUE = ("-o", "-sub", "-nodes", "-topo")
_PACKET_BYTES, _ACK_BYTES, _HEADER_BYTES = 1500, 40, 1  # htsim's packets have no headers; one byte is the minimum here


def _listed(value: object) -> object:
    """Return a scalar as a list of one, as ASTRA-sim 1 wrote networks of one dimension."""
    return value if isinstance(value, list) else [value]


_PER_DIMENSION = (BeforeValidator(_listed), Field(min_length=1, max_length=MAX_DIMENSIONS))


class NetworkFile(PeerFile):
    """Keys of a network file; each value is a list over the dimensions, fastest first."""

    topology: Annotated[list[Literal["Ring", "FullyConnected", "Switch"]], *_PER_DIMENSION]
    npus_count: Annotated[list[Annotated[int, Field(ge=2, le=1 << 24)]], *_PER_DIMENSION]
    bandwidth: Annotated[list[Annotated[FiniteFloat, Field(gt=0, le=1e9)]], *_PER_DIMENSION]
    latency: Annotated[list[Annotated[FiniteFloat, Field(ge=0, le=1e12)]], *_PER_DIMENSION]

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        """Refuse lists of different lengths."""
        for key in ("npus_count", "bandwidth", "latency"):
            if len(getattr(self, key)) != len(self.topology):
                raise ValueError(f"{key} has {len(getattr(self, key))} entries; expected {len(self.topology)}")
        return self


def read_analytical(path: Path, *, congestion_aware: bool | None) -> tuple[FileSections, list[int]]:
    """Return what a network file says, and the sizes of its dimensions, fastest first.

    `congestion_aware` chooses the back end; None = congestion-aware for one dimension, else unaware, as ASTRA-sim's
    congestion-aware back end has one dimension.
    """
    file = read_model(path, NetworkFile, EXPECTED)
    dims = "_".join(f"{kind}({npus})" for kind, npus in zip(file.topology, file.npus_count, strict=True))
    rates = "_".join(_rate(gib_s) for gib_s in file.bandwidth)
    delays = "_".join(format_time(round(ns * PS_PER_NS)) for ns in file.latency)
    aware = len(file.topology) == 1 if congestion_aware is None else congestion_aware
    sections = {
        "topology": {"spec": f"stack:dims={dims},rates={rates},delays={delays}"},
        "system": {"one_at_a_time": True},
        "network": {"fidelity": "analytical", "congestion_aware": aware, "resolution": "1ns"},
    }
    return FileSections(sections, tuple(file.unknown_keys())), file.npus_count


def _rate(gib_s: float) -> str:
    """Return a bandwidth in GB/s of 2^30 bytes in the notation of run files, in whole bits per second."""
    return f"{gib_s:g}GiB/s" if float(f"{gib_s:g}") == gib_s and gib_s % 1 == 0 else format_rate(round(gib_s * 8 * GIB))


class LogicalTopology(PeerFile):
    """Sizes of the logical dimensions, fastest first, which the file holds as texts."""

    dims: Annotated[list[Annotated[int, Field(ge=1, le=MAX_NODES)]], Field(min_length=1, max_length=16)] = Field(
        alias="logical-dims"
    )


def is_ns3(path: Path) -> bool:
    """Return whether a network file is one of the ns-3 back end; ConfigError if it cannot be read."""
    text = read_text(path, "a network file of ASTRA-sim")
    return bool(_KEY_LINE.match(text)) or (text.lstrip().startswith("{") and "topology_file" in text)


def read_ns3_network(path: Path, logical_topology: Path | None) -> tuple[FileSections, list[int]]:
    """Return what a configuration of ns-3 says, and the sizes of the logical dimensions, fastest first."""
    if logical_topology is None:
        raise ConfigError(f"{path}: a network of ns-3; expected --logical-topology-configuration FILE beside it")
    logical = read_model(logical_topology, LogicalTopology, _LOGICAL)
    text = read_text(path, _EXPECTED)
    config = _of_json(path, parsed(text, path, _EXPECTED)) if text.lstrip()[:1] == "{" else read_ns3(path)
    named = " ".join(config.words.get("TOPOLOGY_FILE", []))
    if not named:
        raise ConfigError(f"{path}: TOPOLOGY_FILE: missing; expected the file of the physical topology")
    # a dimension of one NPU has no links and no collectives of its own
    sizes = [size for size in logical.dims if size > 1] or logical.dims[:1]
    spec = {
        "name": "simai",
        "path": str(find_named(named, path)),
        "dims": "x".join(map(str, sizes)),
        "parallel_links": "last",
    }
    graph = topologies.build(spec)
    params = {key: value for key, value in spec.items() if key != "name"}
    part = ns3_part(config, graph)
    unused = [key for key in part.unused if key != "TOPOLOGY_FILE"] + logical.unknown_keys()
    sections: dict[str, Any] = {"topology": {"name": "simai", "params": params}, **part.sections}
    return FileSections(sections, tuple(unused)), sizes


def _of_json(path: Path, document: Mapping[str, Any]) -> Ns3Config:
    """Return the configuration of a JSON file, whose keys are those of config.txt in sections."""
    words: dict[str, list[str]] = {}
    for name, section in document.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {name}: found {section!r:.60}; expected a section of keys")
        for key, value in section.items():
            words[_JSON_NAMES.get(key, key.upper())] = list(_words(value))
    down = [words.pop(key.upper(), ["0"]) for key in _LINK_DOWN]
    words["LINK_DOWN"] = [word for part in down for word in part[:1]]
    return Ns3Config(path, words)


def _words(value: object) -> Iterator[str]:
    """Return the words of config.txt for a value of JSON."""
    if isinstance(value, dict):
        # the maps of config.txt begin with their number of entries: {"100": 5} becomes "1 100 5"
        yield str(len(value))
        for rate, threshold in value.items():
            yield from (rate, str(threshold))
    else:
        yield str(int(value)) if isinstance(value, bool) else str(value)


def read_htsim_network(path: Path, arguments: Sequence[str]) -> tuple[FileSections, list[int]]:
    """Return what htsim's options say, and the sizes of the dimensions in the network file, fastest first.

    `arguments` are --htsim_opts and what follows it. Raises ConfigError: an option is unknown or there is no -topo.
    """
    dims = read_analytical(path, congestion_aware=None)[1]
    given = _parsed(arguments)
    if "-topo" not in given:
        raise ConfigError(f"{arguments[0]}: found no -topo; expected -topo FILE, htsim's tree")
    nodes = given.get("-nodes", str(math.prod(dims)))
    if nodes != str(math.prod(dims)):
        raise ConfigError(f"{arguments[0]}: -nodes: found {nodes}; expected {math.prod(dims)}, as {path} has")
    sections = {
        "topology": {
            "name": "htsim",
            "params": {"path": str(find_named(given["-topo"], path)), "dims": "x".join(map(str, dims))},
        },
        "network": {"mtu": _PACKET_BYTES, "header": f"{_HEADER_BYTES}B", "ack": f"{_ACK_BYTES}B", "acknowledged": True},
    }
    unused = [key for key in given if key not in {"-topo", "-nodes"}]
    return FileSections(sections, ("bandwidth", "latency", "TCP (windows of a round trip, no losses)", *unused)), dims


def _parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of htsim's options by name, "" for options without a value."""
    found: dict[str, str] = {}
    words = list(arguments[1:])
    while words:
        word = words.pop(0)
        if word in _WITH_VALUE:
            if not words:
                raise ConfigError(f"{arguments[0]}: {word}: found no value; expected one")
            found[word] = words.pop(0)
        elif word in _ALGORITHMS:
            found[word] = words.pop(0) if word == "COUPLED_EPSILON" and words else ""
        else:
            known = ", ".join((*_WITH_VALUE, *_ALGORITHMS))
            raise ConfigError(f"{arguments[0]}: found {word!r}; expected one of {known}")
    return found

"""ASTRA-sim's ns-3 back end: config.txt or config.json, the physical topology that it names, and logical dimensions.

Source: astra-sim/astra-sim, network_frontend/ns3/AstraSimNetwork.cc and examples/network/ns3. The module
nadi.importers.ns3 has the meanings of the keys.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nadi import topologies
from nadi.errors import ConfigError
from nadi.importers.file_sections import FileSections
from nadi.importers.files import PeerFile, find_named, parsed, read_model, read_text
from nadi.importers.ns3 import Ns3Config, ns3_part, read_ns3
from nadi.inputs.limits import MAX_NODES

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


class LogicalTopology(PeerFile):
    """Sizes of the logical dimensions, fastest first, which the file holds as texts."""

    dims: Annotated[list[Annotated[int, Field(ge=1, le=MAX_NODES)]], Field(min_length=1, max_length=16)] = Field(
        alias="logical-dims"
    )


def is_ns3(path: Path) -> bool:
    """Return whether a network file is one of the ns-3 back end; ConfigError if it cannot be read."""
    text = read_text(path, "a network file of ASTRA-sim")
    return bool(_KEY_LINE.match(text)) or (text.lstrip().startswith("{") and "topology_file" in text)


def read_network(path: Path, logical_topology: Path | None) -> tuple[FileSections, list[int]]:
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

"""ASTRA-sim's htsim back end: a .topo file for the fabric, and an analytical network for the logical dimensions.

Source: astra-sim/astra-sim, network_frontend/htsim/HTSimMain.cc and proto/HTSimProtoTcp.cc.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from nadi.errors import ConfigError
from nadi.importers.astra_sim.analytical import read_analytical
from nadi.importers.file_sections import FileSections
from nadi.importers.files import find_named

_ALGORITHMS = ("UNCOUPLED", "COUPLED_INC", "FULLY_COUPLED", "COUPLED_TCP", "COUPLED_SCALABLE_TCP", "COUPLED_EPSILON")
_WITH_VALUE = ("-o", "-sub", "-nodes", "-topo")
_PACKET_BYTES, _ACK_BYTES, _HEADER_BYTES = 1500, 40, 1  # htsim's packets have no headers; one byte is the minimum here


def read_network(path: Path, arguments: Sequence[str]) -> tuple[FileSections, list[int]]:
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

"""Files of source routes: paths of pairs of NPUs by the names of switches (docs/reference/run-file.md)."""

import re
from pathlib import Path

from nadi.errors import ConfigError
from nadi.inputs.documents import quoted, read_toml
from nadi.pdes import wire
from nadi.simulation.assembly import NodeNames
from nadi.topologies import Graph, with_source_routes

_EXPECTED = 'pairs and lists of paths, as "npu 0 -> npu 9" = ["leaf 0 -> spine 1 -> leaf 3"]'
_CABLE = re.compile(r"(.+\S) +cable +([0-9]{1,9})")


def with_listed_paths(graph: Graph, path: Path | None, routing: str) -> Graph:
    """Return the fabric with the source routes of a file, if one is given and packets take them.

    Raises ConfigError or TopologyError: the file cannot be read, or one of its paths is none of the fabric.

    Args:
        graph: The fabric, with all endpoints and circuits that a run adds.
        path: The file; None = none.
        routing: Name of the run's routing.
    """
    if path is None or not wire.detours.known(routing).by_source:
        return graph
    names = NodeNames(graph)
    paths: dict[tuple[int, int], list[list[int | tuple[int, int]]]] = {}
    for pair, listed in read_toml(path, _EXPECTED, ConfigError, "toml").items():
        where = f"{path}: {pair}"
        if not isinstance(listed, list) or not listed or not all(isinstance(text, str) for text in listed):
            raise ConfigError.at(where, f"found {quoted(listed)}", "a list of paths")
        try:
            ends = names.ends(pair)
            if ends in paths:
                raise ConfigError.at(where, "the pair once more", "each pair once")
            paths[ends] = [[_step(names, text) for text in re.split(" -> | → ", each)] for each in listed]
        except ValueError as error:
            raise error if isinstance(error, ConfigError) else ConfigError(f"{where}: {error}") from None
    return with_source_routes(graph, paths, path)


def _step(names: NodeNames, text: str) -> int | tuple[int, int]:
    """Return a switch of a path, with the only cable to it if one is named; ValueError if there is no such switch."""
    match = _CABLE.fullmatch(text.strip())
    return (names.node(match[1]), int(match[2])) if match else names.node(text)

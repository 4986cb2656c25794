"""Nodes of a fabric by number or name, as users and reports write them: "leaf 0" or "npu 3"."""

import difflib
import re
from functools import cached_property

from topologies import Graph

_MAX_SUGGESTIONS = 4
_MIN_SIMILARITY = 0.5  # minimum similarity of a suggestion to the text, as difflib measures it
_SEPARATORS = tuple(re.compile(separator) for separator in (" → ", " -> ", " - ", "-"))


class NodeNames:
    """Names of the nodes of one fabric."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def node(self, text: str) -> int:
        """Return the node of a name or number.

        Raises:
            ValueError: No node has this name or number; the message suggests similar names.
        """
        node = self._node(text)
        if node is not None:
            return node
        wanted = " ".join(text.split())
        if wanted.isascii() and wanted.isdigit():
            raise ValueError(f"found node {wanted}; expected one of the nodes 0 to {self._graph.nodes - 1}")
        raise ValueError(f"found {wanted!r}, which is not the name of a node; {self._near(wanted)}")

    def ends(self, text: str) -> tuple[int, int]:
        """Return both ends of "12-40" or "leaf 0 - spine 1"; the arrow of reports is a separator too.

        Raises:
            ValueError: The text has fewer or more than two ends, or one of them is not a node.
        """
        places = [match.span() for separator in _SEPARATORS for match in separator.finditer(text)]
        if not places:
            raise ValueError(f'found {text!r}; expected two nodes, as "12-40" or "leaf 0 - spine 1"')
        for begin, end in places:
            a, b = self._node(text[:begin]), self._node(text[end:])
            if a is not None and b is not None:
                return a, b
        begin, end = places[0]
        return self.node(text[:begin]), self.node(text[end:])

    @cached_property
    def _node_of(self) -> dict[str, int]:
        return {self._graph.node_name(node): node for node in reversed(range(self._graph.nodes))}

    @cached_property
    def _names_by_kind(self) -> dict[str, list[str]]:
        """Return the names in the order of their nodes, by kind."""
        names: dict[str, list[str]] = {}
        for node in range(self._graph.nodes):
            name = self._graph.node_name(node)
            names.setdefault(_kind(name), []).append(name)
        return names

    def _node(self, text: str) -> int | None:
        name = " ".join(text.split())
        if name in self._node_of:
            return self._node_of[name]
        return int(name) if re.fullmatch("[0-9]{1,9}", name) and int(name) < self._graph.nodes else None

    def _near(self, name: str) -> str:
        same = self._names_by_kind.get(_kind(name), [])
        if len(same) > 1:
            return f"expected one of {same[0]} to {same[-1]}"
        if same:
            return f"expected {same[0]}"
        like = difflib.get_close_matches(_kind(name), self._names_by_kind, n=_MAX_SUGGESTIONS, cutoff=_MIN_SIMILARITY)
        number = name.rpartition(" ")[2]
        near = [
            f"{kind} {number}" if f"{kind} {number}" in self._node_of else self._names_by_kind[kind][0] for kind in like
        ]
        every = [names[0] for names in self._names_by_kind.values()][:_MAX_SUGGESTIONS]
        return f"nearest: {', '.join(near)}" if near else f"expected a name like {', '.join(every)}"


def _kind(name: str) -> str:
    """Return the kind of a node's name, "leaf" for "leaf 2"; a name without a number is a kind of its own."""
    word, _, number = name.rpartition(" ")
    return word if word and number.isdigit() else name

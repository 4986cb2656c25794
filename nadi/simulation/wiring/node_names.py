"""Nodes of a fabric as the user calls them: by number, or by the name that reports print, "leaf 0" or "npu 3"."""

import difflib
import re
from functools import cached_property

from topologies import Graph

_MOST_SUGGESTED = 4
_LEAST_LIKE = 0.5
_BETWEEN = tuple(re.compile(between) for between in (" → ", " -> ", " - ", "-"))


class NodeNames:
    """The names of a fabric's nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def node(self, text: str) -> int:
        """The node of a name or number.

        Raises:
            ValueError: there is none; the text says what was found and which names are near.
        """
        found = self._node(text)
        if found is not None:
            return found
        wanted = " ".join(text.split())
        if wanted.isascii() and wanted.isdigit():
            raise ValueError(f"found node {wanted}; expected one of the nodes 0 to {self._graph.nodes - 1}")
        raise ValueError(f"found {wanted!r}, which no node is called; {self._near(wanted)}")

    def ends(self, text: str) -> tuple[int, int]:
        """Both ends of "12-40" or "leaf 0 - spine 1", also with the arrow that reports print.

        Raises:
            ValueError: not two ends, or one that is no node.
        """
        places = [at.span() for between in _BETWEEN for at in between.finditer(text)]
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
    def _of_sort(self) -> dict[str, list[str]]:
        """Names in the order of their nodes, by what they begin with."""
        found: dict[str, list[str]] = {}
        for node in range(self._graph.nodes):
            name = self._graph.node_name(node)
            found.setdefault(_sort(name), []).append(name)
        return found

    def _node(self, text: str) -> int | None:
        name = " ".join(text.split())
        if name in self._node_of:
            return self._node_of[name]
        return int(name) if re.fullmatch("[0-9]{1,9}", name) and int(name) < self._graph.nodes else None

    def _near(self, name: str) -> str:
        same = self._of_sort.get(_sort(name), [])
        if len(same) > 1:
            return f"expected one of {same[0]} to {same[-1]}"
        if same:
            return f"expected {same[0]}"
        like = difflib.get_close_matches(_sort(name), self._of_sort, n=_MOST_SUGGESTED, cutoff=_LEAST_LIKE)
        number = name.rpartition(" ")[2]
        near = [f"{sort} {number}" if f"{sort} {number}" in self._node_of else self._of_sort[sort][0] for sort in like]
        every = [names[0] for names in self._of_sort.values()][:_MOST_SUGGESTED]
        return f"nearest: {', '.join(near)}" if near else f"expected a name like {', '.join(every)}"


def _sort(name: str) -> str:
    """What "leaf 2" begins with, "leaf"; a name that does not end in a number is a sort of its own."""
    word, _, number = name.rpartition(" ")
    return word if word and number.isdigit() else name

"""Sources as text and as trees, and what a rule says of them."""

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from nadi.compiling import kernel_cache

ROOT = Path(__file__).parents[2]
FOLDERS = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")
"""Folders of the product."""


class Finding(NamedTuple):
    path: str
    line: int
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}"


@dataclass(frozen=True)
class Source:
    """A Python file.

    Attributes:
        path: From the root of the repository.
        text: What stands in it.
    """

    path: str
    text: str

    @cached_property
    def tree(self):
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self):
        """All nodes of the tree: rules look at them again and again."""
        return [*ast.walk(self.tree)]

    @cached_property
    def imports(self):
        return [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    @cached_property
    def attributes_of_names(self):
        """(line, name, attribute) of each attribute of a name, as `state.World`."""
        found = (node for node in self.nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
        return [(node.lineno, node.value.id, node.attr) for node in found]

    @property
    def module(self):
        return f"nadi.{self.path.removeprefix('nadi/').removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")

    def found(self, line, what):
        return Finding(self.path, line, what)

    def lines_with(self, pattern):
        """Yield the number of the line in which each match of a compiled pattern begins."""
        yield from (self.text.count("\n", 0, match.start()) + 1 for match in pattern.finditer(self.text))


@cache
def read(path):
    return Source(path, (ROOT / path).read_text(encoding="utf-8"))


def path_of(module):
    return (ROOT / f"{module.replace('.', '/')}.py").resolve().relative_to(ROOT).as_posix()  # not through a link


@cache
def product():
    """Return all sources of the product."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [read(path.relative_to(ROOT).as_posix()) for path in paths]


def engine():
    return [read(path.resolve().relative_to(ROOT).as_posix()) for path in kernel_cache.files()]

"""Rows are written by the modules that their declarations name, and by no others."""

import ast
import importlib
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from compiling import kernel_sources
from pdes.core.rows.row import Row, WordKind, kinds_of_rows, word
from pdes.core.rows.run import ControlParameters
from tests.pdes.writers import Engine, trees

ROOT = Path(__file__).parents[2]
OPEN_FOLDERS = ("nic.congestion", "network.balancing", "messages.fidelity")
"""To which files are added without editing anything else: declarations name the folder."""

for _module in kernel_sources.modules():
    importlib.import_module(_module)


def spelt(module, kind):
    """A module as declarations of `written_by` have it."""
    own = module.removeprefix("pdes.")
    folder = own.rpartition(".")[0]
    return f"{folder}.*" if folder in OPEN_FOLDERS and module != kind.__module__ else own


@pytest.fixture(scope="module")
def writes():
    """(module, kind of row or None, node) of all writes in kernel sources."""
    return [*Engine(trees(ROOT, kernel_sources.files())).writes()]


def test_rows_are_written_by_whom_they_say(writes):
    found = {kind: set() for kind in kinds_of_rows()}
    for module, kind, _ in writes:
        if kind is not None:
            found[kind].add(spelt(module, kind))
    wrong = []
    for kind, modules in found.items():
        expected = tuple(sorted(modules))
        if kind.written_by != expected:
            more, fewer = sorted(modules - {*kind.written_by}), sorted({*kind.written_by} - modules)
            said = f"{kind.__module__}.{kind.__name__}:"
            said += f" {', '.join(more)} write it and are not declared;" * bool(more)
            said += f" {', '.join(fewer)} are declared and do not write it;" * bool(fewer)
            wrong.append(f'{said} meant? then declare written_by="{" ".join(expected)}"')
    assert not wrong, "\n" + "\n".join(wrong)


def test_of_every_word_that_is_written_the_row_is_known(writes):
    words = {name for kind in kinds_of_rows() for name in kind.declared}
    strange = [
        f"{module}, line {node.lineno}: {ast.unparse(node)}"
        for module, kind, node in writes
        if kind is None and node.attr in words
    ]
    assert strange == [], "bind the row from a world's field, a helper of seen_as or what makes rows (writers.py)"


READ_ONLY = {"PlanStep"}
"""Made whole by workload.collectives.schedules.packed."""


def test_every_kind_is_written_somewhere():
    unwritten = {kind for kind in kinds_of_rows() if not kind.written_by}
    assert {kind.__name__ for kind in unwritten if not issubclass(kind, ControlParameters)} == READ_ONLY


class Door(Row):
    """Of a house."""

    opened_ps = word(WordKind.TIME, "when")
    bells = word(WordKind.COUNT, "that ring", many=3)


class GlassDoor(Door):
    """Of glass."""

    panes = word(WordKind.COUNT, "of it")


class House(NamedTuple):
    """Doors."""

    door: Annotated[np.recarray, Door]
    front: Annotated[np.record, Door]
    length: Annotated[np.ndarray, np.int64]


SOURCES = {
    "views": "glass = seen_as(GlassDoor)",
    "by_field": "def f(h):\n h.door[3].opened_ps = 1",
    "by_name": "def f(h, i):\n d = h.door[i]\n d.opened_ps += 1",
    "typed": "def f(h, i):\n d: Rows = h.door[:i]\n d.opened_ps = 1",
    "pair": "def f(h):\n a, d = h.length, h.front\n d.opened_ps, a[0] = 1, 2",
    "array_in_row": "def f(h):\n bells = h.front.bells\n bells[2] = 1",
    "derived": "from home.views import glass\ndef f(h):\n g = glass(h.door)[0]\n g.opened_ps = g.panes = 1",
    "helper": "def ring(d):\n d.bells[0] = 1",
    "calls": "from home.helper import ring\ndef f(h):\n ring(h.front)",
    "builds": "def make(n):\n rows = rows_of(Door, n)\n for name in NAMES:\n  rows[name][:n] = 1\n return rows, 1",
    "made_with": "def make(n):\n return rows_of(Door, n, opened_ps=1)",
    "made": "from home.builds import make\ndef f():\n d, n = make(3)\n d[:n].opened_ps = 0",
    "made_there": "from home import builds as b\ndef f():\n d, n = b.make(3)\n d[:n].opened_ps = 0",
    "clears": "def f(h, i):\n clear_row(h.door, i)",
    "keeps": "class K:\n def a(self, h):\n  self.d = self.b(h)\n"
    " def b(self, h):\n  return h.front\n def f(self):\n  self.d.opened_ps = 1",
    "reads": "def f(h):\n h.length[0] = h.front.opened_ps\n when = h.door[0].bells[1]\n when += 1\n return when",
    "unknown": "def f(x):\n x.opened_ps = 1",
}
WRITERS = {
    "by_field",
    "by_name",
    "typed",
    "pair",
    "array_in_row",
    "derived",
    "helper",
    "builds",
    "made",
    "made_there",
    "made_with",
    "clears",
    "keeps",
}
FIELDS = {"door": Door, "front": Door, "length": None}


def test_writers_are_found_however_they_come_by_a_row():
    classes = {"Door": Door, "GlassDoor": GlassDoor, "House": House}
    engine = Engine({f"home.{name}": ast.parse(text) for name, text in SOURCES.items()}, lambda _: classes)
    engine.by_field = {("pdes.core", name): {kind} for name, kind in FIELDS.items()}
    engine.settle()
    found = {}
    for module, kind, _ in engine.writes():
        found.setdefault(kind, set()).add(module.removeprefix("home."))
    assert found == {Door: WRITERS, GlassDoor: {"derived"}, None: {"unknown"}}

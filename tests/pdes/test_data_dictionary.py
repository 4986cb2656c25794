"""The generated data dictionary shows the rows as they are declared."""

import importlib

from nadi.compiling import kernel_sources
from nadi.pdes.core.rows.npu import Npu
from nadi.pdes.core.rows.row import Row, kinds_of_rows, word
from nadi.pdes.core.state import LANES
from nadi.simulation.closed_forms.advancing.state import NpuClass
from scripts.document_reference import documentation_of_rows
from tests.nonempty import nonempty

for _module in kernel_sources.modules():
    importlib.import_module(_module)


def test_every_word_of_every_row_is_in_the_dictionary():
    """By hand from the declarations, so that the generator cannot omit any."""
    sections = dict(part.split("\n", 1) for part in documentation_of_rows(kinds_of_rows()).split("\n## ")[1:])
    assert {kind.__name__ for kind in kinds_of_rows()} <= set(sections)
    for kind in nonempty(kinds_of_rows()):
        inherited = getattr(kind.__bases__[0], "declared", {})
        for name, declared in kind.declared.items():
            if name not in inherited and not name.startswith("_"):
                line = next(line for line in sections[kind.__name__].splitlines() if line.startswith(f"| `{name}`"))
                assert declared.meaning.replace("|", "\\|") in line


def test_npus_have_words_for_every_lane():
    for kind in (Npu, NpuClass):
        assert {kind.declared[name].many for name in ("lane", "wait_head", "wait_tail")} == {LANES}


def test_a_section():
    class Shelf(Row, words=8):
        """Books,
        side by side."""

        books = word("count", "read | not read", many=3)

    class TallShelf(Shelf):
        """Tall ones."""

        top_ps = word("time", "dusted")

    shown = documentation_of_rows([Shelf, TallShelf])
    assert "## Shelf\n\nBooks, side by side.\n\n8 words (64 bytes), 3 of them in use, declared in `" in shown
    assert "| `books` [3] | count | read \\| not read |" in shown
    tall = shown.split("## TallShelf")[1]
    assert "| ... | | as Shelf |\n| `top_ps` | time | dusted |" in tall
    assert "books" not in tall

"""Rows are written by the modules that their declarations name.

A word whose name only one kind of row has identifies that kind wherever it is assigned, so the test needs no types.
"""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

from compiling import kernel_sources
from pdes.core.rows.row import kinds_of_rows

ROOT = Path(__file__).parents[2]
OPEN_FOLDERS = ("nic.congestion", "network.balancing", "network.disciplines", "fidelity", "checkpoint")
"""Folders to which users add files, or which restore all rows; declarations name the folder instead of each file."""
PRIMITIVES = ROOT / "pdes" / "core" / "jit.py"
"""File of `clear_row` and similar functions, which write rows on behalf of their callers."""

for _module in kernel_sources.modules():
    importlib.import_module(_module)


def declared_name(module, kind):
    """Return a module's name as `written_by` of a kind of row spells it."""
    own = module.removeprefix("pdes.")
    folder = own.rpartition(".")[0]
    return f"{folder}.*" if folder in OPEN_FOLDERS and module != kind.__module__ else own


def assigned_words(tree):
    """Yield (name, whether an item of it is assigned) of every attribute that a module assigns, except of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self":
                yield target.attr, target is not node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"row_of", "rows_of"}:
            yield from ((keyword.arg, False) for keyword in node.keywords)


def declaring_kinds():
    """Return the kinds of row that declare each word, derived kinds that inherit it left out."""
    found = defaultdict(set)
    for kind in kinds_of_rows():
        for name in kind.declared:
            found[name].add(next(each for each in kind.__mro__ if name in getattr(each, "declared", {})
                                 and name not in getattr(each.__base__, "declared", {})))  # fmt: skip
    return found


def undeclared_writers(sources):
    """Yield a line for every module that assigns a word of a kind of row that does not declare the module.

    Args:
        sources: Text of each module by the module's name.
    """
    kinds = declaring_kinds()
    for module, text in sources.items():
        for name, is_item in sorted(set(assigned_words(ast.parse(text)))):
            if len(kinds[name]) != 1:
                continue
            (kind,) = kinds[name]
            is_word = not is_item or kind.declared[name].many > 1
            in_reach = module.split(".")[0] == kind.__module__.split(".")[0]
            if is_word and in_reach and declared_name(module, kind) not in kind.written_by:
                yield f"{module} assigns {name} of {kind.__name__}: add it to written_by if it should"


def sources():
    """Return the text of every module that may hold kernels, by its name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in kernel_sources.files()
        if path != PRIMITIVES
    }


def test_words_are_assigned_by_declared_modules_only():
    assert list(undeclared_writers(sources())) == []


def test_declared_modules_exist_and_know_a_word_of_the_row():
    texts, stale = sources(), []
    for kind in kinds_of_rows():
        names = re.compile(rf"\b(?:{'|'.join([kind.__name__, *kind.declared])})\b")
        for writer in kind.written_by:
            own = [text for module, text in texts.items() if declared_name(module, kind) == writer]
            if not any(map(names.search, own)):
                stale.append(f"{kind.__name__}: {writer}")
    assert stale == []


def test_an_undeclared_writer_is_found():
    texts = {"pdes.npu.tokens": "port.transit_packets, x = 1, 2", "pdes.nic.port": "a.transit_packets = 1"}
    assert (
        "\n".join(undeclared_writers(texts))
        == "pdes.npu.tokens assigns transit_packets of Port: add it to written_by if it should"
    )
    assert list(undeclared_writers({"pdes.npu.tokens": "def f(a):\n self.transit_packets = a.transit_packets"})) == []

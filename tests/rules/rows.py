"""Declarations of rows: names and meanings of words, and the modules that write them.

A word whose name only one kind of row has identifies that kind wherever it is assigned, so the rule needs no types.
"""

import ast
import importlib
import re
from collections import defaultdict
from functools import cache

import numpy as np

from nadi.compiling import kernel_sources
from nadi.pdes.core.rows.row import kinds_of_rows
from tests.rules.sources import engine, path_of, read

OPEN_FOLDERS = ("nic.congestion", "network.balancing", "network.disciplines", "fidelity", "checkpoint")
"""Folders to which users add files, or which restore all rows; declarations name the folder instead of each file."""
PRIMITIVES = "pdes/core/jit.py"
"""File of `clear_row` and similar functions, which write rows on behalf of their callers."""


@cache
def kinds():
    """Return all kinds of rows of the product."""
    for module in kernel_sources.modules():
        importlib.import_module(module)
    return kinds_of_rows()


def source_of(kind):
    """Return the file of a kind of row."""
    return read(path_of(kind.__module__))


def written(kind):
    """Return a kind of row as it stands in its source."""
    return next(node for node in source_of(kind).tree.body if getattr(node, "name", "") == kind.__name__)


def poor_words(kind):
    """Find words of a kind of row with a name that something else has, or without a meaning."""
    source, node = source_of(kind), written(kind)
    names = [line.targets[0].id for line in node.body if isinstance(line, ast.Assign)]
    inherited = [name for base in kind.__bases__ for name in getattr(base, "declared", {})]
    if sorted(names + inherited) != sorted(kind.declared):
        yield source.found(node.lineno, f"{kind.__name__}: a name that stands twice hides a word")
    for name, declared in kind.declared.items():
        if hasattr(np.recarray, name):
            yield source.found(node.lineno, f"{kind.__name__}.{name}: records of NumPy have an attribute of that name")
        if not declared.meaning.strip():
            yield source.found(node.lineno, f"{kind.__name__}.{name} has no meaning")


def declared_name(module, kind):
    """Return a module's name as `written_by` of a kind of row spells it."""
    own = module.removeprefix("nadi.pdes.")
    folder = own.rpartition(".")[0]
    return f"{folder}.*" if folder in OPEN_FOLDERS and module != kind.__module__ else own


def _assigned_words(source):
    """Yield (name, line, whether an item of it is assigned) of attributes that a module assigns, except of self."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            target = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") != "self":
                yield target.attr, node.lineno, target is not node
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"row_of", "rows_of"}:
            yield from ((keyword.arg, node.lineno, False) for keyword in node.keywords)


def _declaring_kinds():
    """Return the kinds of row that declare each word, derived kinds that inherit it left out."""
    found = defaultdict(set)
    for kind in kinds():
        for name in kind.declared:
            found[name].add(next(each for each in kind.__mro__ if name in getattr(each, "declared", {})
                                 and name not in getattr(each.__base__, "declared", {})))  # fmt: skip
    return found


def undeclared_writers(sources):
    """Find assignments to words of a kind of row that does not declare the module."""
    declaring = _declaring_kinds()
    for source in sources:
        module = source.module
        for name, line, is_item in _assigned_words(source):
            if len(declaring[name]) != 1:
                continue
            (kind,) = declaring[name]
            is_word = not is_item or kind.declared[name].many > 1
            in_reach = module.startswith("nadi.pdes.") == kind.__module__.startswith("nadi.pdes.")
            if is_word and in_reach and declared_name(module, kind) not in kind.written_by:
                yield source.found(line, f"assigns {name} of {kind.__name__}: add {module} to written_by if it should")


def idle_writers(sources):
    """Find declared modules that do not exist, or that name neither the kind of row nor one of its words."""
    sources = list(sources)
    for kind in kinds():
        names = re.compile(rf"\b(?:{'|'.join([kind.__name__, *kind.declared])})\b")
        for writer in kind.written_by:
            own = [source.text for source in sources if declared_name(source.module, kind) == writer]
            if not any(map(names.search, own)):
                yield source_of(kind).found(written(kind).lineno, f"{kind.__name__}: {writer} does not write it")


def findings():
    for kind in kinds():
        yield from poor_words(kind)
    sources = [source for source in engine() if source.path != PRIMITIVES]
    yield from undeclared_writers(sources)
    yield from idle_writers(sources)

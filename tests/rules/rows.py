"""Declarations of rows: names and meanings of words."""

import ast
import importlib
from functools import cache

import numpy as np

from nadi.compiling import kernel_cache
from nadi.pdes.core.rows import kinds_of_rows
from tests.rules.sources import path_of, read


@cache
def kinds():
    for module in kernel_cache.modules():
        importlib.import_module(module)
    return kinds_of_rows()


def source_of(kind):
    return read(path_of(kind.__module__))


def written(kind):
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


def findings():
    for kind in kinds():
        yield from poor_words(kind)

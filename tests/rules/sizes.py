"""A file of the engine is one idea, which fits on a few screens; so does a function, on one."""

import ast

from tests.rules.sources import engine

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_FUNCTION = 60


def long_files(sources):
    for source in sources:
        lines = len(source.text.splitlines())
        if lines > MOST_LINES_OF_A_FILE:
            yield source.found(lines, f"{lines} lines, at most {MOST_LINES_OF_A_FILE}: divide it by ideas")


def long_functions(sources):
    for source in sources:
        for node in source.nodes:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                lines = node.end_lineno - node.lineno + 1
                said = f"{node.name} has {lines} lines, at most {MOST_LINES_OF_A_FUNCTION}: divide it by ideas"
                yield source.found(node.lineno, said)


def findings():
    yield from long_files(engine())
    yield from long_functions(engine())

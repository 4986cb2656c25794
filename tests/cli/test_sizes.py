"""A file of the engine is one idea, which fits on a few screens; so does a function, on one."""

import ast
from pathlib import Path

from compiling import kernel_sources

ROOT = Path(__file__).parents[2]
MOST_LINES_OF_A_FILE = 450
MOST_LINES_OF_A_FUNCTION = 60


def long_functions(text):
    """Names of those with more lines than a function may have, from `def` on."""
    for node in ast.walk(ast.parse(text)):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
            yield node.name


def sources():
    """Path from the root and text of each file of the engine, and of others with kernels."""
    return [(path.relative_to(ROOT).as_posix(), path.read_text()) for path in kernel_sources.files()]


def test_no_file_of_the_engine_is_long():
    long = {path for path, text in sources() if len(text.splitlines()) > MOST_LINES_OF_A_FILE}
    assert not long, "divide it by ideas"


def test_no_function_of_the_engine_is_long():
    long = {f"{path} {name}" for path, text in sources() for name in long_functions(text)}
    assert not long, "divide it by ideas"


def test_a_long_function_is_seen():
    body = "    x = 0\n" * MOST_LINES_OF_A_FUNCTION
    assert [*long_functions(f"class A:\n    def one(self): ...\n@hook\ndef two():\n{body}")] == ["two"]
    assert [*long_functions(f"@hook\ndef three():\n{body}".removesuffix("    x = 0\n"))] == []

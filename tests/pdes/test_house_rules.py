import ast
from pathlib import Path

import pytest

from pdes.core import state

ROOT = Path(__file__).parents[2]
PACKAGES = ("pdes", "et", "topologies", "workload", "partition", "nadi")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DECORATORS = {"kernel", "inline", "outline", "hook"}
NUMPY_CASTS = {"int64", "float64"}
PLAIN_TWINS = {
    "call_hook",
    "trailing_zeros",
    "prefetch",
    "peek",
    "load_acquire",
    "store_release",
    "fetch_add",
    "yield_core",
    "read",
}
BUILTINS = {"range", "min", "max", "abs", "int", "float"}
MAKES_OBJECTS = (
    ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp, ast.JoinedStr, ast.Lambda,
    ast.Try, ast.Raise, ast.With, ast.Global, ast.Nonlocal, ast.Yield, ast.Starred,
)  # fmt: skip


def imports(tree, name, *, top_only=False):
    """Lines that import the package `name`."""
    nodes = tree.body if top_only else ast.walk(tree)
    lines = []
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        lines += [node.lineno for found in names if found.split(".")[0] == name]
    return lines


def kernels(tree):
    """Functions that Numba compiles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(getattr(d, "id", None) in DECORATORS for d in node.decorator_list):
            yield node


def negative_indices(function):
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript):
            for part in ast.walk(node.slice):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
                    yield part.lineno


def forbidden(function, known):
    """(line, what) of all that would allocate or that Numba should not meet; known: names of callable helpers."""
    for node in ast.walk(function):
        if isinstance(node, MAKES_OBJECTS):
            yield node.lineno, type(node).__name__
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                fine = getattr(called.value, "id", None) == "np" and called.attr in NUMPY_CASTS
                if not fine:
                    yield node.lineno, called.attr
            elif called.id not in known | BUILTINS:
                yield node.lineno, called.id


def helpers(tree):
    """Names in a module that kernels may call: compiled there, or imported from the engine."""
    names = {function.name for function in kernels(tree)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(
            getattr(d, "id", None) == "intrinsic" for d in node.decorator_list
        ):
            names.add(node.name)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pdes."):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def free_names(function):
    """Names that a function reads but does not bind."""
    bound = {argument.arg for argument in function.args.args}
    read = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else read).add(node.id)
    return read - bound


def parsed(path):
    return ast.parse(path.read_text(), str(path))


def test_there_is_something_to_check():
    found = [function.name for path in SOURCES for function in kernels(parsed(path))]
    assert len(found) > 60
    assert {"work", "window", "on_ack", "link_send", "mix"} <= set(found)


def test_numba_stands_in_one_file():
    users = [path.relative_to(ROOT).as_posix() for path in SOURCES if imports(parsed(path), "numba")]
    assert users == ["pdes/core/compiler.py"]


@pytest.mark.parametrize("package", ["mpi4py"])
def test_mpi_is_not_imported_with_any_module(package):
    assert [str(path) for path in SOURCES if imports(parsed(path), package, top_only=True)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_kernels_allocate_nothing_and_use_no_negative_index(path):
    tree = parsed(path)
    known = helpers(tree) | PLAIN_TWINS
    for function in kernels(tree):
        assert list(negative_indices(function)) == [], function.name
        assert list(forbidden(function, known)) == [], function.name


@pytest.mark.parametrize("path", sorted((ROOT / "pdes").rglob("*.py")), ids=lambda path: path.stem)
def test_kernels_read_constants_and_helpers_only(path):
    tree = parsed(path)
    known = helpers(tree) | BUILTINS | {"np", "kernel", "inline", "outline"} | PLAIN_TWINS
    for function in kernels(tree):
        strange = {name for name in free_names(function) - known if not name.isupper()}
        assert strange == set(), function.name


def test_the_rules_find_what_they_forbid():
    bad = ast.parse(
        "import numba.core\n"
        "def f():\n    from mpi4py import MPI\n"
        "@inline\ndef g(a, i):\n    b = np.zeros(3)\n    c = [1]\n    print(a)\n    a.sort()\n"
        "    return a[i, -1] + state\n"
    )
    (function,) = kernels(bad)
    assert imports(bad, "numba") == [1]
    assert imports(bad, "mpi4py") == [3]
    assert imports(bad, "mpi4py", top_only=True) == []
    assert list(negative_indices(function)) == [10]
    assert {what for _, what in forbidden(function, set())} == {"zeros", "List", "print", "sort"}
    assert "state" in free_names(function)


WORDS = (
    "PORT",
    "NPU",
    "RXQP",
    "CONST",
    "CTL",
    "INST",
    "LANE",
    "CLASS",
    "NODE",
    "GATE",
    "TX",
    "PHASE",
    "SYSTEM",
    "ASKED",
)


@pytest.mark.parametrize("prefix", WORDS)
def test_no_two_words_of_a_row_share_their_place(prefix):
    """Words written as `PREFIX_NAME = number` between `PREFIX_WORDS` and the end of the rows."""
    named = {
        name: value
        for name, value in vars(state).items()
        if name.startswith(f"{prefix}_") and name.isupper() and isinstance(value, int)
    }
    size = named.pop(f"{prefix}_WORDS")
    places = [value for name, value in named.items() if value < size]
    assert sorted(places) == sorted(set(places))

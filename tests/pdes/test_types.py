"""Kernels are typed by Numba, all else of the engine by annotations that mypy holds."""

import ast
import tomllib
from pathlib import Path

import pytest

from compiling import kernel_sources

ROOT = Path(__file__).parents[2]
KERNELS = {"kernel", "inline", "outline", "hook", "primitive"}
"""Decorators of what Numba compiles, or has instructions for (pdes/core/jit.py)."""
TEACHES_NUMBA = {f"compiling.{name}" for name in ("compiler", "primitives", "records")}
"""Of Numba's own objects, which have no types."""
OPEN_FOLDERS = {"pdes.fidelity", "pdes.network.balancing", "pdes.network.disciplines", "pdes.nic.congestion"}
"""Folders to which users add files, so that no file of theirs needs an entry."""
FILES = kernel_sources.files()


def decorators(function):
    called = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return {one.attr if isinstance(one, ast.Attribute) else one.id for one in called}


def functions(tree):
    """Every function, and whether it is a kernel, or stands in one."""

    def inside(node, of_kernel):
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            compiled = of_kernel or (is_function and bool(decorators(child) & KERNELS))
            if is_function:
                yield child, compiled
            yield from inside(child, compiled)

    return inside(tree, of_kernel=False)


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def untyped(function):
    """What mypy's disallow_untyped_defs and disallow_incomplete_defs would complain of."""
    given = function.args
    taken = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    missing = [one.arg for one in taken if one and one.annotation is None and one.arg not in {"self", "cls"}]
    takes_nothing = not any(one for one in taken if one and one.arg not in {"self", "cls"})
    return missing or (function.returns is None and (function.name != "__init__" or takes_nothing))


def exempt():
    """Modules in which mypy asks for no types."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return [name for each in overrides if each.get("disallow_untyped_defs") is False for name in each["module"]]


def test_mypy_spares_the_files_that_hold_kernels_and_no_others():
    holding = {module(path) for path in FILES if any(kernel for _, kernel in functions(ast.parse(path.read_text())))}
    folders = {folder for folder in OPEN_FOLDERS if any(name.startswith(f"{folder}.") for name in holding)}
    files = {name for name in holding if name.rpartition(".")[0] not in OPEN_FOLDERS}
    assert exempt() == sorted([*files, *(f"{folder}.*" for folder in folders), *TEACHES_NUMBA])


@pytest.mark.parametrize("path", [path for path in FILES if module(path) not in TEACHES_NUMBA], ids=module)
def test_what_is_no_kernel_has_types(path):
    host = [function for function, kernel in functions(ast.parse(path.read_text())) if not kernel]
    assert [function.name for function in host if untyped(function)] == []


def test_an_untyped_function_beside_kernels_is_seen():
    tree = ast.parse("@inline\ndef a(x): return x\ndef b(x: int): return x\ndef c() -> None: ...")
    assert [(function.name, kernel, bool(untyped(function))) for function, kernel in functions(tree)] == [
        ("a", True, True),
        ("b", False, True),
        ("c", False, False),
    ]

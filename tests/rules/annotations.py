"""Kernels are typed by Numba, all else of the engine by annotations that mypy holds."""

import ast
import tomllib

from tests.rules.sources import ROOT, Finding, engine

KERNELS = {"kernel", "inline", "outline", "hook", "primitive"}
"""Decorators of what Numba compiles, or has instructions for (compiling/decorators.py)."""
TEACHES_NUMBA = {f"nadi.compiling.{name}" for name in ("compiler", "primitives")}
"""Of Numba's own objects, which have no types."""
OPEN_FOLDERS = {
    "nadi.pdes.fidelity",
    "nadi.pdes.network.balancing",
    "nadi.pdes.network.detours",
    "nadi.pdes.network.disciplines",
    "nadi.pdes.nic.congestion",
    "nadi.pdes.nic.entropy",
}
"""Folders to which users add files, so that no file of theirs needs an entry."""
PROJECT = "pyproject.toml"


def _decorators(function):
    called = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return {one.attr if isinstance(one, ast.Attribute) else one.id for one in called}


def functions(tree, of_kernel=False):
    for child in ast.iter_child_nodes(tree):
        is_function = isinstance(child, ast.FunctionDef)
        compiled = of_kernel or (is_function and bool(_decorators(child) & KERNELS))
        if is_function:
            yield child, compiled
        yield from functions(child, compiled)


def is_untyped(function):
    """Return whether mypy's disallow_untyped_defs or disallow_incomplete_defs would complain."""
    given = function.args
    taken = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    taken = [one for one in taken if one and one.arg not in {"self", "cls"}]
    missing = any(one.annotation is None for one in taken)
    return missing or (function.returns is None and (function.name != "__init__" or not taken))


def untyped(sources):
    """Find functions beside kernels that have no types, for which mypy does not ask there."""
    for source in sources:
        if source.module not in TEACHES_NUMBA:
            for function, is_kernel in functions(source.tree):
                if not is_kernel and is_untyped(function):
                    yield source.found(function.lineno, f"{function.name} has no types")


def exempt(project):
    """Return the modules in which the text of a pyproject.toml has mypy ask for no types."""
    overrides = tomllib.loads(project)["tool"]["mypy"]["overrides"]
    return [name for each in overrides if each.get("disallow_untyped_defs") is False for name in each["module"]]


def wrongly_exempt(sources, project):
    """Find differences between the modules that hold kernels and those that mypy spares."""
    holding = {source.module for source in sources if any(kernel for _, kernel in functions(source.tree))}
    folders = {f"{folder}.*" for folder in OPEN_FOLDERS if any(name.startswith(f"{folder}.") for name in holding)}
    files = {name for name in holding if name.rpartition(".")[0] not in OPEN_FOLDERS}
    expected, listed = files | folders | TEACHES_NUMBA, exempt(project)
    what = dict.fromkeys(set(listed) - expected, "has no kernels, mypy must not spare it")
    what |= dict.fromkeys(expected - set(listed), "has kernels, add it to those that mypy spares")
    lines = project.splitlines()
    for name, said in sorted(what.items()):
        line = next((number for number, line in enumerate(lines, 1) if line.strip() == f'"{name}",'), 1)
        yield Finding(PROJECT, line, f"{name} {said}")
    if listed != sorted(listed):
        yield Finding(PROJECT, 1, "the modules that mypy spares are not in the order of the alphabet")


def findings():
    yield from untyped(engine())
    yield from wrongly_exempt(engine(), (ROOT / PROJECT).read_text(encoding="utf-8"))

"""Shell completion: names of topologies, clusters, models, kinds of collectives, algorithms, methods and benchmarks.

The shell starts `nadi` at each completion. To answer in a fraction of a second, these functions read the names in the
files of the other packages, as text, and import none of them.
"""

import ast
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nadi.inputs import plug_ins

_BENCHES = ("permutation", "allreduce", "hierarchical", "roce", "pairs", "flow", "coupled", "reuse", "trace")


def topology_names(incomplete: str) -> list[str]:
    """Return the topologies, machines and clusters that begin with the incomplete word."""
    names = {name for kind in ("topology", "machine", "cluster") for name in plug_ins.names(kind)}
    return _beginning(incomplete, sorted(names))


def cluster_names(incomplete: str) -> list[str]:
    """Return the clusters that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("cluster"))


def model_names(incomplete: str) -> list[str]:
    """Return the models of the library that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("model"))


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of collectives that begin with the incomplete word."""
    workload = plug_ins.ROOT / "nadi" / "workload"
    uneven = _constants(workload / "collectives" / "uneven.py")["NAME"]
    return _beginning(incomplete, (*_constants(workload / "kinds.py")["KINDS"], uneven))


def algorithms(incomplete: str) -> list[str]:
    """Return matching algorithms, of the kind on the command line or of all kinds; a list has commas: "ring,direct".

    Args:
        incomplete: The beginning of the word.
    """
    # the shell's variables, because the parser fails if an option lacks a value
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    *even, uneven = known_kinds = kinds("")
    kind = next((word for word in words if word in known_kinds), None)
    before, comma, last = incomplete.rpartition(",")
    modules = {name: _constants(path) for name, path in plug_ins.own_files("collective algorithm").items()}
    if kind == uneven:
        plain = _constants(plug_ins.ROOT / "nadi" / "workload" / "collectives" / "uneven.py")["ALGORITHMS"]
        names = [*plain, *(name for name, constants in modules.items() if "plan_uneven" in constants)]
    else:  # kinds that are computed are those of an algorithm from a file, for any kind
        names = [name for name, module in modules.items() if kind is None or kind in module.get("KINDS", even)]
    names += plug_ins.installed_names("collective algorithm")
    return [f"{before}{comma}{name}" for name in _beginning(last, names if before else ("all", *names))]


def methods(incomplete: str) -> list[str]:
    """Return the partition methods that begin with the incomplete word."""
    return _beginning(incomplete, plug_ins.names("partition method"))


def benches(incomplete: str) -> list[str]:
    """Return the benchmarks that begin with the incomplete word."""
    return _beginning(incomplete, _BENCHES)


def _constants(path: Path) -> dict[str, Any]:
    """Return the literal values that a module assigns, by name, and None for each of its functions."""
    found: dict[str, Any] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.FunctionDef):
            found[statement.name] = None
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            with suppress(ValueError):
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
    return found


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

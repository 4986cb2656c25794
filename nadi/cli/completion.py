"""Shell completion: names of topologies, kinds of collectives, and algorithms.

The shell starts `nadi` at each completion, so that each function imports its heavy modules itself; after an error it
offers nothing.
"""

import os
from collections.abc import Iterable


def topology_names(incomplete: str) -> list[str]:
    """Return the topologies and clusters that begin with the incomplete word."""
    from topologies import topologies
    from topologies.clusters import clusters

    return _beginning(incomplete, sorted({*topologies(), *clusters()}))


def kinds(incomplete: str) -> list[str]:
    """Return the kinds of collectives that begin with the incomplete word."""
    from workload import KINDS
    from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN

    return _beginning(incomplete, (*KINDS, UNEVEN))


def algorithms(incomplete: str) -> list[str]:
    """Return matching algorithms, of the kind on the command line or of all kinds; a list has commas: "ring,direct"."""
    from workload.collectives import known_algorithms as known
    from workload.collectives import uneven_algorithms
    from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN

    # the shell's variables, because the parser fails if an option lacks a value
    words = (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    kind = next((word for word in words if word in kinds("")), None)
    before, comma, last = incomplete.rpartition(",")
    if kind == UNEVEN:
        names: Iterable[str] = uneven_algorithms()
    else:
        names = sorted(name for name, module in known().items() if kind is None or kind in module.KINDS)
    return [f"{before}{comma}{name}" for name in _beginning(last, names if before else ("all", *names))]


def methods(incomplete: str) -> list[str]:
    """Return the partition methods that begin with the incomplete word."""
    from partition import methods as known

    return _beginning(incomplete, known())


def benches(incomplete: str) -> list[str]:
    """Return the benchmarks that begin with the incomplete word."""
    from nadi.studies.benchmarks.bench import BENCHES
    from pdes.fidelity import FLUID

    return _beginning(incomplete, [*BENCHES, FLUID, "coupled", "reuse", "trace"])


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

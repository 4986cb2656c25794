"""Announcement of the compilation of kernels, which takes a while once on each machine."""

from collections.abc import Callable
from typing import Any

from nadi import pdes
from nadi.compiling.decorators import jit_enabled
from nadi.compiling.kernel_cache import cache_dir, is_warm, last_compilation_s, note_compilation
from nadi.launching.progress import Progress
from nadi.pdes import work
from nadi.simulation.closed_forms.idle_fabric import idle_settings
from nadi.topologies import Graph
from nadi.workload import Program

# main kernels that this process has already loaded, whose cache entries need no second check
_LOADED_KERNELS: set[Callable[..., Any]] = set()


def announce_compilation(kernel: Callable[..., Any], progress: Progress) -> bool:
    """Print a line if a main kernel must be compiled first, with the time that this took before; return whether.

    Args:
        kernel: The main kernel of the run.
        progress: Display of the run's progress.
    """
    if not jit_enabled() or kernel in _LOADED_KERNELS:
        return False
    # only the first run of a process can have to compile
    _LOADED_KERNELS.add(kernel)
    if is_warm(kernel):
        return False
    seconds = last_compilation_s(kernel)
    hint = "" if seconds is None else f" (it took {seconds:.0f} s here before)"
    progress.say(f"compiling the kernels, once, into {cache_dir()}{hint}")
    return True


def compile_plays(graph: Graph, program: Program, settings: pdes.Settings, progress: Progress) -> None:
    """Compile the kernels that play collectives as packets, in a run that simulates no packets itself.

    Args:
        graph: The fabric (`Graph`).
        program: Work of all NPUs (`Program`).
        settings: The engine's settings of the run (`pdes.Settings`).
        progress: Display of the run's progress.
    """
    model = settings.fidelity.model
    plays = model.has_headers and not model.has_packets and bool((program.node_schedule >= 0).any())
    if plays and announce_compilation(work, progress):
        idle = idle_settings(graph, settings)
        note_compilation(work, pdes.compile_kernels(pdes.Layout(graph, idle), idle))

"""The commands, one module each: a function of the module's name, such as `report` in report.py.

A module with several commands has `register(group)` instead, which adds them. Modules import what a command needs when
the command runs, because `nadi --help` must start neither Numba nor MPI.
"""

import importlib
import pkgutil
from types import ModuleType

import typer


def add_commands(group: typer.Typer, package: ModuleType) -> None:
    """Add the commands of all modules of a package in alphabetical order.

    A function whose name would hide one of Python's, such as `slice_`, ends in an underscore.
    """
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, "register"):
            module.register(group)
        else:
            group.command(info.name)(getattr(module, info.name, None) or getattr(module, f"{info.name}_"))

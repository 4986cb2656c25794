"""The engine's plug-ins: modules with hooks, of `pdes` itself, of installed packages and in files of users."""

from types import ModuleType
from typing import Any

from nadi.compiling import defect_text
from nadi.inputs import plug_ins
from nadi.pdes.core import RunError
from nadi.pdes.core.jit import hook_address


def module_of(kind: str, name: str, hook: str, parameters: int) -> ModuleType:
    """Return the module of a plug-in by name or file; RunError if it is none, or its hook is wrong.

    The hook of an outside file is compiled here.

    Args:
        kind: Kind of plug-in.
        name: Name of a plug-in, or path of its file.
        hook: Name of the module's hook.
        parameters: Number of the hook's parameters.
    """
    module: ModuleType = plug_ins.module(kind, name, RunError)
    # own files are compiled with the run that uses them
    if name not in plug_ins.own_files(kind):
        check_hook(f"{name}: {hook}", getattr(module, hook), parameters)
    return module


def check_hook(label: str, hook: Any, parameters: int) -> None:
    """Raise a RunError that begins with `label` if `hook` is no hook of so many parameters, or does not compile."""
    # py_func: under NUMBA_DISABLE_JIT=1 a hook is the plain function itself
    function = getattr(hook, "py_func", hook)
    found = getattr(getattr(function, "__code__", None), "co_argcount", None)
    if found != parameters:
        raise RunError(f"{label} has {found} parameters; expected a hook of {parameters}")
    try:
        hook_address(hook)
    except Exception as error:
        raise RunError(f"{label}: {defect_text(error)}; expected a hook of integers") from error

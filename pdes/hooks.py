"""What kernels call by address: the parts of the engine of which a run uses some."""

from pdes import state as s


def hooks_of(settings) -> dict:
    """The hooks of a run: constant (CONST_*) that holds the address -> hook."""
    return {s.CONST_CC_HOOK: settings.control.update} if settings.control.update else {}

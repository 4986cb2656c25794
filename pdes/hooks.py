"""What kernels call by address: the parts of the engine of which a run uses some."""

from pdes import state as s
from pdes.shared_switch import shared_switches


def hooks_of(settings) -> dict:
    """The hooks of a run: constant (CONST_*) that holds the address -> hook."""
    hooks = {}
    if settings.control.update:
        hooks[s.CONST_CC_HOOK] = settings.control.update
    if settings.balancing.pick:
        hooks[s.CONST_BALANCE] = settings.balancing.pick
    if settings.switch:
        hooks[s.CONST_SWITCH_HOOK] = shared_switches
    return hooks

"""Which rows meet a cause that is at one place: a NIC, a GPU, a host, or a link between switches.

Tests on other hosts, or on other rails, do not meet it. Lists of devices in logs say which hosts and devices took part.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.insight.benchmark_logs import SEND_RECEIVE, BenchmarkLog
from nadi.studies.diagnosis.likelihood import Floats

_Device = tuple[str, int]  # name of a host, and number of a device
NIC, GPU = "one NIC", "a GPU's NVLinks"  # of `simulating.PLACES`


class MetRows(NamedTuple):
    """The rows that meet a cause, if it is at one of some places."""

    name: str  # name of the place; "" = there are several, or names are not known
    weight: int  # number of places where the same rows would meet it
    mask: Floats  # float64[n] of 0 and 1


def rows_met(what: str, logs: Sequence[BenchmarkLog], npus_per_nic: int, clear: Sequence[bool]) -> list[MetRows]:
    """Return which of n rows meet a cause, by where that may be; at least one row each.

    Args:
        what: What the cause slows, one of the keys of `simulating.PLACES`.
        logs: Test of each row.
        npus_per_nic: Number of GPUs that share a NIC.
        clear: Of each row, whether the NICs of its test are known to be fast.
    """
    if not all(log.members for log in logs):
        masks = _without_names(logs)
    else:
        divisor = npus_per_nic if what == NIC else 1
        shared = {id(log): _devices(what, log, divisor) for log in logs}
        places = sorted({place for places in shared.values() for place in places})
        masks = [(_name(what, place), np.array([place in shared[id(log)] for log in logs])) for place in places]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name, mask in masks:
        seen = mask & ~np.array(clear) if what == NIC else mask
        if seen.any():
            found.setdefault(tuple(seen.tolist()), []).append(name)
    return [
        MetRows(names[0] if len(names) == 1 else "", len(names), np.array(mask, np.float64))
        for mask, names in found.items()
    ]


def _devices(what: str, log: BenchmarkLog, npus_per_nic: int) -> set[_Device]:
    """Return the places of a kind that a test uses."""
    members = log.members
    if (
        what == NIC and log.collective == SEND_RECEIVE
    ):  # each sends to the next: only neighbours in other hosts use NICs
        turned = [*members[1:], members[0]], [members[-1], *members[:-1]]
        members = tuple(
            own
            for own, after, before in zip(members, *turned, strict=True)
            if own[0] != after[0] or own[0] != before[0]
        )
    if what in {NIC, GPU}:
        return {(host, device // npus_per_nic) for host, device in members}
    return {(host, 0) for host, _ in members}


def _name(what: str, place: _Device) -> str:
    """Return the name of a place."""
    return f"{place[0]} device {place[1]}" if what in {NIC, GPU} else place[0]


def _without_names(logs: Sequence[BenchmarkLog]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return what may meet a cause where hosts are not known.

    Tests of fewer GPUs have the place, or they do not; so do the few GPUs that send to other hosts in a shift.
    """
    gpus = np.array([log.gpus for log in logs])
    is_most, is_shift = gpus == gpus.max(), np.array([log.collective == SEND_RECEIVE for log in logs])
    return [("", mask) for mask in (np.ones(len(gpus), np.bool_), is_most, ~is_shift, is_most & ~is_shift)]

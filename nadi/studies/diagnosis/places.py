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


class NicsOfRow(NamedTuple):
    """How the test of a row uses NICs."""

    npus_per_nic: int = 1  # number of GPUs that share a NIC
    are_fast: bool = False  # whether all that the test uses are known to be fast
    relays: bool = False  # whether sends leave a host by the NIC on the receiver's rail (PXN)


def rows_met(what: str, logs: Sequence[BenchmarkLog], nics: Sequence[NicsOfRow]) -> list[MetRows]:
    """Return which of n rows meet a cause, by where that may be; at least one row each.

    Args:
        what: What the cause slows, one of the keys of `simulating.PLACES`.
        logs: Test of each row.
        nics: How each row uses NICs.
    """
    if not all(log.members for log in logs):
        masks = _without_names(logs)
    else:
        shared = {id(log): _devices(what, log, use) for log, use in zip(logs, nics, strict=True)}
        places = sorted({place for places in shared.values() for place in places})
        masks = [(_name(what, place), np.array([place in shared[id(log)] for log in logs])) for place in places]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name, mask in masks:
        seen = mask & ~np.array([use.are_fast for use in nics]) if what == NIC else mask
        if seen.any():
            found.setdefault(tuple(seen.tolist()), []).append(name)
    return [
        MetRows(names[0] if len(names) == 1 else "", len(names), np.array(mask, np.float64))
        for mask, names in found.items()
    ]


def _devices(what: str, log: BenchmarkLog, nics: NicsOfRow) -> set[_Device]:
    """Return the places of a kind that a test uses."""
    members = set(log.members)
    if what == GPU:
        return members
    if what != NIC:
        return {(host, 0) for host, _ in members}
    if log.collective == SEND_RECEIVE:
        members = _nics_of_shift(log.members, relays=nics.relays)
    return {(host, device // nics.npus_per_nic) for host, device in members}


def _nics_of_shift(members: Sequence[_Device], *, relays: bool) -> set[_Device]:
    """Return the GPUs whose NICs carry messages if each member sends to the next one."""
    used = set()
    for sender, receiver in zip(members, [*members[1:], members[0]], strict=True):
        if sender[0] != receiver[0]:
            relay = sender[0], receiver[1]
            used |= {receiver, relay if relays and relay in members else sender}
    return used


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

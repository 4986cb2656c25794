"""MPI called from compiled code: after a window the parcels of a team are sent and those of others taken.

That is two functions of MPI, found in the library that mpi4py uses, and arrays of handles of its persistent requests.
What is rare is left to Python (`pdes.workers.exchange`), and all of it where a function is not found.
"""

import ctypes
from typing import Any, NamedTuple

from pdes.core.jit import call_hook, inline, jit_enabled
from pdes.core.state import INF
from pdes.network.boundary import FAR_WINDOWS
from pdes.workers.parcels import PARCEL_HEADER, TURNS

CODE_BITS = (1 << 32) - 1
"""Of what a C function that gives an int leaves in a register."""


class MpiFunctions(NamedTuple):
    """Addresses of MPI_Startall and MPI_Waitall, 0 = they cannot be called from compiled code."""

    start_all: int = 0
    wait_all: int = 0


def mpi_functions(mpi: Any) -> MpiFunctions:
    """Those of the library behind `mpi` (mpi4py.MPI)."""
    if not jit_enabled():
        return MpiFunctions()
    try:
        library = ctypes.CDLL(mpi.__file__)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in ("MPI_Startall", "MPI_Waitall")]
    except (OSError, AttributeError):
        return MpiFunctions()
    return MpiFunctions(*(address or 0 for address in found))


@inline
def trade(parcels, number, soonest):
    """Send the parcels after a window, take those of other teams, and begin to receive the next.

    False if Python must go on: all of it is left, or what a message had no room for, or MPI has failed.
    """
    calls = parcels.calls[0]
    if calls.start_all == 0:
        return False
    count = calls.others
    requests = parcels.requests[number % TURNS]
    code = call_hook(calls.start_all, count, requests) & CODE_BITS
    if code == 0:
        code = call_hook(calls.wait_all, 2 * count, requests, calls.statuses) & CODE_BITS
    calls.traded = 1
    calls.error = code
    if code != 0:
        return False
    lengths = number % FAR_WINDOWS * 2 * count
    for way in range(2 * count):
        if way < count:
            parcel = parcels.outgoing[way]
        else:
            parcel = parcels.incoming[2 * (way - count) + (number & 1)]
            soonest = min(soonest, parcels.headers[parcel // PARCEL_HEADER].soonest_ps)
        records = parcels.headers[parcel // PARCEL_HEADER].records
        if records < parcels.least[lengths + way] or records > parcels.most[lengths + way]:
            return False
    calls.traded = 0
    if soonest < INF:
        receives = parcels.requests[(number + 1) % TURNS] + count * calls.handle_bytes
        calls.error = call_hook(calls.start_all, count, receives) & CODE_BITS
        calls.traded = int(calls.error != 0)
    return calls.error == 0

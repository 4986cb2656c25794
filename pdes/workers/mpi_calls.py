"""MPI called from compiled code: in each window the parcels of a team are sent and those of others taken.

That is a few functions of MPI, found in the library that mpi4py uses, and arrays of handles of requests. Receives are
persistent and have room for all that links can carry; a parcel is sent as long as it is. Where a function is not found,
Python does all of it (`pdes.workers.exchange`).
"""

import ctypes
from typing import Any

from pdes.core.jit import call_hook, inline, jit_enabled, peek, store_unaligned
from pdes.network.boundary import WORD_BYTES
from pdes.workers.parcels import PARCEL, PARCEL_HEADER, parcel_length

CODE_BITS = (1 << 32) - 1
"""Of what a C function that gives an int leaves in a register."""
FUNCTIONS = {
    "isend": "MPI_Isend",
    "start_all": "MPI_Startall",
    "test_all": "MPI_Testall",
    "wait_all": "MPI_Waitall",
    "allreduce": "MPI_Allreduce",
}


def mpi_functions(mpi: Any) -> dict[str, int]:
    """Addresses of FUNCTIONS in the library behind `mpi` (mpi4py.MPI); empty: compiled code cannot call them."""
    if not jit_enabled():
        return {}
    try:
        library = ctypes.CDLL(mpi.__file__)
        found = {word: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for word, name in FUNCTIONS.items()}
    except (OSError, AttributeError):
        return {}
    return {word: address or 0 for word, address in found.items()} if all(found.values()) else {}


@inline
def send_all(parcels, number):
    """Begin to send the parcels of a window, each as long as it is. MPI's error, 0 if all is well."""
    calls = parcels.calls[0]
    count = parcels.outgoing.shape[0]
    for team in range(count):
        parcel = parcels.outgoing[team]
        length = parcel_length(parcels, parcels.headers[parcel // PARCEL_HEADER].records)
        code = call_hook(
            calls.isend,
            calls.parcels + WORD_BYTES * parcel,
            length,
            calls.type,
            parcels.ranks[team],
            PARCEL,
            calls.communicator,
            parcels.requests[number & 1] + team * calls.handle_bytes,
        )
        if code & CODE_BITS != 0:
            return code & CODE_BITS
    return 0


@inline
def look_after(parcels, number):
    """Have MPI look after the parcels that are under way: some transfers go on only while it is called."""
    calls = parcels.calls[0]
    count = 2 * parcels.outgoing.shape[0]
    call_hook(calls.test_all, count, parcels.requests[number & 1], calls.agreement, calls.statuses)


@inline
def take_all(parcels, number):
    """Wait for the parcels of a window, and begin to receive the next. MPI's error, 0 if all is well."""
    calls = parcels.calls[0]
    count = parcels.outgoing.shape[0]
    code = call_hook(calls.wait_all, 2 * count, parcels.requests[number & 1], calls.statuses) & CODE_BITS
    if code == 0:
        receives = parcels.requests[1 - (number & 1)] + count * calls.handle_bytes
        code = call_hook(calls.start_all, count, receives) & CODE_BITS
    return code


@inline
def least_of_all(parcels, value):
    """The least of the values of all teams; MPI's error is left in `calls`."""
    calls = parcels.calls[0]
    store_unaligned(calls.agreement, value)
    behind = calls.agreement + WORD_BYTES
    code = call_hook(calls.allreduce, calls.agreement, behind, 1, calls.type, calls.least, calls.communicator)
    calls.error = code & CODE_BITS
    calls.agreed += 1
    return peek(behind)

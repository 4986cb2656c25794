"""Work of a team with other teams: parcels are packed and sent, those of others are taken.

These functions are hooks, so that they are compiled only in runs with several teams. Each process has their addresses
in its Parcels, and passes them the address of its Meeting. They call MPI by a few functions of its library and arrays
of request handles; if those are not available, Python does all of it (`pdes.workers.exchange`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from nadi.pdes.core.jit import call_hook, clock_ns, hook, inline, load_unaligned, store_unaligned
from nadi.pdes.core.state import DONE, INF
from nadi.pdes.network.boundary import WORD_BYTES
from nadi.pdes.workers.parcels import PARCEL, PARCEL_HEADER, pack, parcel_words, unpack
from nadi.pdes.workers.team import EXCHANGE, PACKED, await_all, meeting_at

CODE_BITS = (1 << 32) - 1  # bits of the register that a C function with an int result defines


@inline
def send_all(parcels, window_number):
    """Begin to send a window's parcels, each at its actual length. Return MPI's error code, 0 without error.

    Args:
        parcels: Parcels of the team (`Parcels`).
        window_number: Number of the window.
    """
    calls = parcels.calls[0]
    for place in range(parcels.answers.shape[0]):
        parcel = parcels.outgoing[parcels.answers[place]]
        # the receive is posted with room for all that links carry; MPI accepts a shorter message
        length = parcel_words(parcels.headers[parcel // PARCEL_HEADER].records, parcels.shape.record_words)
        code = call_hook(
            calls.isend,
            calls.parcels + WORD_BYTES * parcel,
            length,
            calls.type,
            parcels.ranks[place],
            PARCEL,
            calls.communicator,
            parcels.requests[window_number & 1] + place * calls.handle_bytes,
        )
        if code & CODE_BITS != 0:
            return code & CODE_BITS
    return 0


@inline
def take_all(parcels, window_number):
    """Wait for a window's parcels, and begin to receive the next ones. Return MPI's error code, 0 without error.

    Args:
        parcels: Parcels of the team (`Parcels`).
        window_number: Number of the window.
    """
    calls = parcels.calls[0]
    count = parcels.answers.shape[0]
    code = call_hook(calls.wait_all, 2 * count, parcels.requests[window_number & 1], calls.statuses) & CODE_BITS
    if code == 0:
        # the next window's receives are ready before others can send
        receives = parcels.requests[1 - (window_number & 1)] + count * calls.handle_bytes
        code = call_hook(calls.start_all, count, receives) & CODE_BITS
    return code


@hook
def unpack_parcels(meeting_address, lp, window_number):
    """Unpack the packets for an LP of a process, before its window.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        lp: Index of the LP in the process.
        window_number: Number of the window.
    """
    unpack(meeting_at(meeting_address).parcels, lp, window_number)
    return DONE


@hook
def pack_parcels(meeting_address, lp, window_number):
    """Pack the packets that an LP of a process sends, after its window.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        lp: Index of the LP in the process.
        window_number: Number of the window.
    """
    meeting = meeting_at(meeting_address)
    pack(meeting.parcels, meeting.addresses[lp], lp, window_number, meeting.team.state.begin_ps)
    return DONE


@hook
def send_parcels(meeting_address, worker):
    """Send a worker's parcels, once all workers have packed theirs. Return DONE, ABORTED or WAITING.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        worker: Number of the worker in the team.
    """
    meeting = meeting_at(meeting_address)
    team, parcels = meeting.team, meeting.parcels
    state, worker_row = team.state, team.workers[worker]
    # only the first worker of a process, which runs in its main thread, calls MPI
    if worker_row.leads == 0 or parcels.answers.shape[0] == 0:
        return DONE
    number = worker_row.window
    status = await_all(team, PACKED, worker_row, number)
    if status != DONE:
        return status
    # the team's earliest event as far as known: it is final unless LPs have stopped in the middle of the window
    known, parts = INF, np.int64(0)
    for number_of_other in range(team.workers.shape[0]):
        other = team.workers[number_of_other]
        known = min(known, other.known_ps)
        parts += other.parts
    exact = np.int64(parts == 0)
    for place in range(parcels.answers.shape[0]):
        header = parcels.headers[parcels.outgoing[parcels.answers[place]] // PARCEL_HEADER]
        # with the packets, so that teams know of each other's next event without a message of its own
        header.soonest_ps = known
        header.exact = exact
        header.hops = state.hops
        header.rows_left = state.rows_left
        header.begin_ps = state.begin_ps
        header.cut = state.said_cut
    begun = clock_ns()
    if worker == 0:
        state.said_ps = known
        state.exact = exact
    if parcels.calls[0].isend != 0:
        parcels.calls[0].error = send_all(parcels, number)
        worker_row.waited_ns += clock_ns() - begun
    return DONE


@hook
def help_along(meeting_address, worker):
    """Let MPI make progress with a worker's parcels: some transfers need calls of the library.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        worker: Number of the worker in the team.
    """
    meeting = meeting_at(meeting_address)
    parcels, worker_row = meeting.parcels, meeting.team.workers[worker]
    calls = parcels.calls[0]
    if calls.isend != 0 and worker_row.leads == 1:
        count = 2 * parcels.answers.shape[0]
        # most libraries move large messages only inside calls; the result is not needed
        call_hook(calls.test_all, count, parcels.requests[worker_row.window & 1], calls.agreement, calls.statuses)
    return DONE


@hook
def take_parcels(meeting_address, worker):
    """Receive a worker's parcels. Return DONE, or EXCHANGE if Python must do it or MPI has failed.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        worker: Number of the worker in the team.
    """
    meeting = meeting_at(meeting_address)
    parcels, worker_row = meeting.parcels, meeting.team.workers[worker]
    calls = parcels.calls[0]
    if worker_row.leads == 0:
        return DONE
    if calls.isend == 0 or calls.error != 0:
        return EXCHANGE
    begun = clock_ns()
    calls.error = take_all(parcels, worker_row.window)
    worker_row.waited_ns += clock_ns() - begun
    return DONE if calls.error == 0 else EXCHANGE


@hook
def agree(meeting_address, window_number):
    """Find the earliest event of all teams. Return DONE, or EXCHANGE if Python must do it or MPI has failed.

    Args:
        meeting_address: Address of the directory of the process's `Meeting`.
        window_number: Number of the window.
    """
    # The parcels contain it if no team had LPs that stopped in the middle of the window. Otherwise it is known if any
    # team announces that the next window begins at the end of this one: nothing is earlier. Otherwise a reduction
    # follows.
    meeting = meeting_at(meeting_address)
    parcels, state, worker_row = meeting.parcels, meeting.team.state, meeting.team.workers[0]
    calls = parcels.calls[0]
    if state.agreed > window_number:
        return DONE
    # the first worker of the team reads the headers for all of its processes
    soonest = INF
    exact = state.exact
    state.all_hops = state.hops
    state.all_rows_left = state.rows_left
    for team in range(parcels.outgoing.shape[0]):
        parcels.headers[parcels.outgoing[team] // PARCEL_HEADER].records = 0  # the parcel has been sent
        header = parcels.headers[parcels.incoming[2 * team + (window_number & 1)] // PARCEL_HEADER]
        soonest = min(soonest, header.soonest_ps)
        exact &= header.exact
        # the strongest request of any team, which all know from this window on, so that they stop before the same one
        state.cut = max(state.cut, header.cut)
        state.all_hops += header.hops
        state.all_rows_left += header.rows_left
    end = worker_row.begin_ps + state.window_ps
    if exact == 1:
        state.soonest_ps = min(state.soonest_ps, soonest)
    # Some LPs have stopped in the middle, but somebody's event within a cell of the end is known: the next window
    # begins at the end whatever else there is, as nothing can be earlier.
    elif min(state.said_ps, soonest) < end + state.cell_ps:
        state.soonest_ps = end
    elif calls.isend == 0:
        return EXCHANGE
    else:
        begun = clock_ns()
        minimum = calls.agreement + WORD_BYTES
        store_unaligned(calls.agreement, state.soonest_ps)
        code = call_hook(calls.allreduce, calls.agreement, minimum, 1, calls.type, calls.least, calls.leaders)
        calls.error = code & CODE_BITS
        calls.agreed += 1
        state.soonest_ps = load_unaligned(minimum)
        worker_row.waited_ns += clock_ns() - begun
    state.agreed = window_number + 1
    return DONE if calls.error == 0 else EXCHANGE


_HOOKS = unpack_parcels, pack_parcels, send_parcels, help_along, take_parcels, agree
OTHER_TEAMS: dict[str, Callable[..., Any]] = {hook.__name__: hook for hook in _HOOKS}  # name (of `ParcelHooks`) -> hook

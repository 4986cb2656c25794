"""What the workers of a team do where there are other teams: parcels are packed and sent, those of others are taken.

That is hooks, so that it is compiled only where there are several teams. Each process has their addresses in its
Parcels, and passes the address of its Meeting on to them. They call MPI by a few functions of its library and arrays of
handles of requests; where those are not found, Python does all of it (`pdes.workers.exchange`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdes.core.jit import call_hook, clock_ns, hook, hook_address, inline, peek, store_unaligned
from pdes.core.state import INF
from pdes.core.status import DONE
from pdes.network.boundary import WORD_BYTES
from pdes.workers.parcels import PARCEL, PARCEL_HEADER, Parcels, pack, parcel_words, unpack
from pdes.workers.team import EXCHANGE, PACKED, await_all, meeting_at

CODE_BITS = (1 << 32) - 1
"""Of what a C function that gives an int leaves in a register."""


@inline
def send_all(parcels, number):
    """Begin to send the parcels of a window, each as long as it is. MPI's error, 0 if all is well."""
    calls = parcels.calls[0]
    for place in range(parcels.answers.shape[0]):
        parcel = parcels.outgoing[parcels.answers[place]]
        length = parcel_words(parcels.headers[parcel // PARCEL_HEADER].records, parcels.record_words[0])
        code = call_hook(
            calls.isend,
            calls.parcels + WORD_BYTES * parcel,
            length,
            calls.type,
            parcels.ranks[place],
            PARCEL,
            calls.communicator,
            parcels.requests[number & 1] + place * calls.handle_bytes,
        )
        if code & CODE_BITS != 0:
            return code & CODE_BITS
    return 0


@inline
def take_all(parcels, number):
    """Wait for the parcels of a window, and begin to receive the next. MPI's error, 0 if all is well."""
    calls = parcels.calls[0]
    count = parcels.answers.shape[0]
    code = call_hook(calls.wait_all, 2 * count, parcels.requests[number & 1], calls.statuses) & CODE_BITS
    if code == 0:
        receives = parcels.requests[1 - (number & 1)] + count * calls.handle_bytes
        code = call_hook(calls.start_all, count, receives) & CODE_BITS
    return code


@hook
def unpack_parcels(address, lp, number):
    """Take out what came for an LP, before its window."""
    unpack(meeting_at(address).parcels, lp, number)
    return DONE


@hook
def pack_parcels(address, lp, number):
    """Put in what an LP sends, after its window."""
    m = meeting_at(address)
    pack(m.parcels, m.addresses[lp], lp, number)
    return DONE


@hook
def send_parcels(address, worker):
    """Once all have put in what goes to other teams, send the parcels for which a worker answers.

    DONE, ABORTED or WAITING.
    """
    m = meeting_at(address)
    team, parcels = m.team, m.parcels
    state, own = team.state, team.workers[worker]
    if own.leads == 0 or parcels.answers.shape[0] == 0:
        return DONE
    number = own.window
    status = await_all(team, PACKED, own, number)
    if status != DONE:
        return status
    known, parts = INF, np.int64(0)
    for number_of_other in range(team.workers.shape[0]):
        other = team.workers[number_of_other]
        known = min(known, other.known_ps)
        parts += other.parts
    exact = np.int64(parts == 0)
    for place in range(parcels.answers.shape[0]):
        header = parcels.headers[parcels.outgoing[parcels.answers[place]] // PARCEL_HEADER]
        header.soonest_ps = known
        header.exact = exact
        header.hops = state.hops
        header.rows_left = state.rows_left
    begun = clock_ns()
    if worker == 0:
        state.said_ps = known
        state.exact = exact
    if parcels.calls[0].isend != 0:
        parcels.calls[0].error = send_all(parcels, number)
        own.waited_ns += clock_ns() - begun
    return DONE


@hook
def help_along(address, worker):
    """Have MPI look after a worker's parcels that are under way: some transfers go on only while it is called."""
    m = meeting_at(address)
    parcels, own = m.parcels, m.team.workers[worker]
    calls = parcels.calls[0]
    if calls.isend != 0 and own.leads == 1:
        count = 2 * parcels.answers.shape[0]
        call_hook(calls.test_all, count, parcels.requests[own.window & 1], calls.agreement, calls.statuses)
    return DONE


@hook
def take_parcels(address, worker):
    """A worker takes the parcels for which it answers. DONE, or EXCHANGE if Python must do it, or MPI has failed."""
    m = meeting_at(address)
    parcels, own = m.parcels, m.team.workers[worker]
    calls = parcels.calls[0]
    if own.leads == 0:
        return DONE
    if calls.isend == 0 or calls.error != 0:
        return EXCHANGE
    begun = clock_ns()
    calls.error = take_all(parcels, own.window)
    own.waited_ns += clock_ns() - begun
    return DONE if calls.error == 0 else EXCHANGE


@hook
def agree(address, number):
    """The first worker finds the earliest event of all teams. DONE, or EXCHANGE if Python must, or MPI has failed.

    The parcels say it, if no team had LPs that had done their part of the window only in part. Else it is known if any
    team says that the next window begins where this ends: nothing is earlier. Else all tell each other once more.
    """
    m = meeting_at(address)
    parcels, state, own = m.parcels, m.team.state, m.team.workers[0]
    calls = parcels.calls[0]
    if state.agreed > number:
        return DONE
    soonest = INF
    exact = state.exact
    state.all_hops = state.hops
    state.all_rows_left = state.rows_left
    for team in range(parcels.outgoing.shape[0]):
        parcels.headers[parcels.outgoing[team] // PARCEL_HEADER].records = 0  # it has been sent
        header = parcels.headers[parcels.incoming[2 * team + (number & 1)] // PARCEL_HEADER]
        soonest = min(soonest, header.soonest_ps)
        exact &= header.exact
        state.all_hops += header.hops
        state.all_rows_left += header.rows_left
    end = own.begin_ps + state.window_ps
    if exact == 1:
        state.soonest_ps = min(state.soonest_ps, soonest)
    elif min(state.said_ps, soonest) < end + state.cell_ps:
        state.soonest_ps = end
    elif calls.isend == 0:
        return EXCHANGE
    else:
        begun = clock_ns()
        least = calls.agreement + WORD_BYTES
        store_unaligned(calls.agreement, state.soonest_ps)
        code = call_hook(calls.allreduce, calls.agreement, least, 1, calls.type, calls.least, calls.leaders)
        calls.error = code & CODE_BITS
        calls.agreed += 1
        state.soonest_ps = peek(least)
        own.waited_ns += clock_ns() - begun
    state.agreed = number + 1
    return DONE if calls.error == 0 else EXCHANGE


_HOOKS = unpack_parcels, pack_parcels, send_parcels, help_along, take_parcels, agree
OTHER_TEAMS: dict[str, Callable[..., Any]] = {hook.__name__: hook for hook in _HOOKS}
"""Name (of `ParcelHooks`) -> hook."""


def trade(parcels: Parcels) -> None:
    """Have the workers of a process send parcels and take others: compile what that needs, or load it."""
    for name, function in OTHER_TEAMS.items():
        parcels.hooks[name] = hook_address(function)

"""What the workers of a team do where there are other teams: parcels are packed and sent, those of others are taken.

That is hooks, so that it is compiled only where there are several teams. Each process has their addresses in its
Parcels, and passes the address of its Meeting on to them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdes.core.jit import clock_ns, hook, hook_address
from pdes.core.state import INF
from pdes.core.status import DONE
from pdes.workers.mpi_calls import least_of_all, look_after, send_all, take_all
from pdes.workers.parcels import Parcels, pack, seal, unpack, unseal
from pdes.workers.team import EXCHANGE, PACKED, WORKER_WORDS, await_word, meeting_at


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
def send_parcels(address, number):
    """The first worker waits until all have put in what goes to other teams, and sends it. DONE, ABORTED or WAITING."""
    m = meeting_at(address)
    team, parcels = m.team, m.parcels
    state, own = team.state, team.workers[0]
    known = INF
    parts = np.int64(0)
    for worker in range(team.workers.shape[0]):
        status = await_word(team, PACKED + worker * WORKER_WORDS, number + 1, own)
        if status != DONE:
            return status
        other = team.workers[worker]
        known = min(known, other.known_ps)
        parts += other.parts
    state.said_ps = known
    state.exact = np.int64(parts == 0)
    seal(parcels, state)
    state.sent = number + 1
    state.sent_ns = clock_ns()
    if parcels.calls[0].isend != 0:
        parcels.calls[0].error = send_all(parcels, number)
        own.waited_ns += clock_ns() - state.sent_ns
    return DONE


@hook
def help_along(address, number):
    """The first worker has MPI look after parcels that are under way, if it is compiled code that calls it."""
    parcels = meeting_at(address).parcels
    if parcels.calls[0].isend != 0:
        look_after(parcels, number)
    return DONE


@hook
def take_parcels(address, number):
    """The first worker takes the parcels of other teams. DONE, or EXCHANGE if Python must do it, or MPI has failed."""
    m = meeting_at(address)
    parcels, own = m.parcels, m.team.workers[0]
    calls = parcels.calls[0]
    if calls.isend == 0 or calls.error != 0:
        return EXCHANGE
    begun = clock_ns()
    calls.error = take_all(parcels, number)
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
    if state.agreed > number:
        return DONE
    soonest, exact, hops, left = unseal(parcels, number)
    state.all_hops = state.hops + hops
    state.all_rows_left = state.rows_left + left
    end = own.begin_ps + state.window_ps
    if exact == 1 and state.exact == 1:
        state.soonest_ps = min(state.soonest_ps, soonest)
    elif min(state.said_ps, soonest) < end + state.cell_ps:
        state.soonest_ps = end
    elif parcels.calls[0].isend == 0:
        return EXCHANGE
    else:
        begun = clock_ns()
        state.soonest_ps = least_of_all(parcels, state.soonest_ps)
        own.waited_ns += clock_ns() - begun
    state.agreed = number + 1
    return DONE if parcels.calls[0].error == 0 else EXCHANGE


OTHER_TEAMS: dict[str, Callable[..., Any]] = {
    "unpack_parcels": unpack_parcels,
    "pack_parcels": pack_parcels,
    "send_parcels": send_parcels,
    "help_along": help_along,
    "take_parcels": take_parcels,
    "agree": agree,
}
"""Name (of `ParcelHooks`) -> hook."""


def trade(parcels: Parcels) -> None:
    """Have the workers of a process send parcels and take others: compile what that needs, or load it."""
    for name, function in OTHER_TEAMS.items():
        parcels.hooks[name] = hook_address(function)

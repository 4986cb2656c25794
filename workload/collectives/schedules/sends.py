"""Who sends how much to whom in a schedule, without going through the steps of each member."""

import numpy as np
from numpy.typing import NDArray

from workload.collectives.schedules.packed import Schedules


def message_count(s: Schedules, index: int) -> int:
    """How many messages there are."""
    sent = sum(int(np.count_nonzero(s.send_peer[_steps(s, plan)] >= 0)) for plan in _plans(s, index))
    return sent * (int(s.members[index]) if s.relative[index] else 1)


def packet_count(s: Schedules, index: int, size_bytes: int, mtu_bytes: int) -> float:
    """About how many packets there are: messages are taken to be as long as their share of the buffer says."""
    payload = np.concatenate([message_sizes(s, index, plan, size_bytes)[:, 1] for plan in _plans(s, index)])
    packets = float(np.maximum(1, payload / mtu_bytes).sum())
    return packets * (int(s.members[index]) if s.relative[index] else 1)


def message_sizes(s: Schedules, index: int, plan: int, size_bytes: int) -> NDArray[np.float64]:
    """float64[sends, 2]: data and payload of all messages of a plan, which need not be whole.

    Args:
        s: as packed.
        index: of the schedule.
        plan: one of its plans.
        size_bytes: the whole buffer.
    """
    found = [np.zeros((0, 2))]
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        steps = slice(int(s.lane_ptr[lane]), int(s.lane_ptr[lane + 1]))
        pieces = int(s.lane_parts[lane]) * int(s.lane_chunks[lane])
        if s.lane_view[lane] >= 0:
            pieces *= int(s.view_parts[s.view_base[index] + s.lane_view[lane]])
        data = s.send_count[steps][s.send_peer[steps] >= 0] * (size_bytes / pieces)
        found.append(np.stack([data, data * (s.lane_wire_num[lane] / s.lane_wire_den[lane])], axis=1))
    return np.concatenate(found)


def usual_message(s: Schedules, index: int, size_bytes: int) -> tuple[float, float]:
    """Data and payload of the median message."""
    sizes = np.concatenate([message_sizes(s, index, plan, size_bytes) for plan in sorted(set(_plans(s, index)))])
    data, payload = sizes[np.argsort(sizes[:, 0])[(len(sizes) - 1) // 2]].tolist()
    return data, payload


def pairs(s: Schedules, index: int, most: int) -> set[tuple[int, int]] | None:
    """Senders and receivers of all messages; None = more than so many, as far as that can be told without listing."""
    members = int(s.members[index])
    if s.relative[index]:
        far = offsets(s, index)
        if members * len(far) > most:
            return None
        return {(m, peer(s, index, view, m, offset)) for m in range(members) for view, offset in far}
    peers = peers_of_members(s, index)
    return {(m, p) for m in range(members) for p in peers[m]} if sum(map(len, peers)) <= most else None


def peers_of_members(s: Schedules, index: int) -> list[list[int]]:
    """Those to which each member sends, of a schedule with a plan for each."""
    peers = (np.unique(s.send_peer[_steps(s, plan)]).tolist() for plan in _plans(s, index))
    return [[p for p in own if p >= 0] for own in peers]


def offsets(s: Schedules, index: int) -> list[tuple[int, int]]:
    """View (over all schedules, -1 = none) and offset of the peers to which the plan of a relative schedule sends."""
    found: set[tuple[int, int]] = set()
    plan = _plans(s, index)[0]
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        peers = np.unique(s.send_peer[s.lane_ptr[lane] : s.lane_ptr[lane + 1]])
        view = int(s.view_base[index] + s.lane_view[lane]) if s.lane_view[lane] >= 0 else -1
        found |= {(view, p) for p in peers[peers > 0].tolist()}
    return sorted(found)


def peer(s: Schedules, index: int, view: int, member: int, offset: int) -> int:
    """The member that stands `offset` places after another, in its line of a view or in the group (view -1)."""
    if view < 0:
        return (member + offset) % int(s.members[index])
    size, first = int(s.view_size[view]), int(s.view_ptr[view])
    at = int(s.view_at[first + member])
    return int(s.view_member[first + at - at % size + (at + offset) % size])


def most_bytes(s: Schedules, index: int, size_bytes: int) -> int:
    """The most that a member sends or receives, of a schedule in which all send from the whole buffer."""
    most = 0
    for plan in _plans(s, index):
        steps = _steps(s, plan)
        for ends, count in ((s.send_peer, s.send_count), (s.recv_peer, s.recv_count)):
            most = max(most, int(count[steps][ends[steps] >= 0].sum()))
    return most * size_bytes // int(s.chunks[index])


def has_gates(s: Schedules, index: int) -> bool:
    """Whether there are phases that wait for a token of their dimension."""
    return any((s.lane_gate[s.plan_ptr[plan] : s.plan_ptr[plan + 1]] >= 0).any() for plan in _plans(s, index))


def lanes_of(s: Schedules, index: int) -> slice:
    """Lanes of the plan of a relative schedule."""
    plan = _plans(s, index)[0]
    return slice(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1]))


def steps_of(s: Schedules, index: int) -> slice:
    """Steps of the plan of a relative schedule."""
    return _steps(s, _plans(s, index)[0])


def _plans(s: Schedules, index: int) -> list[int]:
    return s.plan_of[s.plan_of_ptr[index] : s.plan_of_ptr[index + 1]].tolist()


def _steps(s: Schedules, plan: int) -> slice:
    return slice(int(s.lane_ptr[s.plan_ptr[plan]]), int(s.lane_ptr[s.plan_ptr[plan + 1]]))

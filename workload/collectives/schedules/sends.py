"""Senders, receivers and sizes of a schedule's messages, counted without going through the steps of each member."""

import numpy as np
from numpy.typing import NDArray

from workload.collectives.schedules.packed import Schedules


def message_count(s: Schedules, index: int) -> int:
    """Return the number of messages."""
    sent = sum(int(np.count_nonzero(s.send_peer[_steps(s, plan)] >= 0)) for plan in _plans(s, index))
    return sent * (int(s.members[index]) if s.relative[index] else 1)


def packet_count(s: Schedules, index: int, size_bytes: int, mtu_bytes: int) -> float:
    """Return the approximate number of packets: a message's size is taken as its share of the buffer."""
    payload = np.concatenate([message_sizes(s, index, plan, size_bytes)[:, 1] for plan in _plans(s, index)])
    packets = float(np.maximum(1, payload / mtu_bytes).sum())
    return packets * (int(s.members[index]) if s.relative[index] else 1)


def message_sizes(s: Schedules, index: int, plan: int, size_bytes: int) -> NDArray[np.float64]:
    """Return float64[sends, 2]: data and payload in bytes of all messages of a plan (its row), not rounded."""
    sizes = [np.zeros((0, 2))]
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        steps = slice(int(s.lane_ptr[lane]), int(s.lane_ptr[lane + 1]))
        pieces = int(s.lane_parts[lane]) * int(s.lane_chunks[lane])
        if s.lane_view[lane] >= 0:
            pieces *= int(s.view_parts[s.view_base[index] + s.lane_view[lane]])
        data = s.send_count[steps][s.send_peer[steps] >= 0] * (size_bytes / pieces)
        sizes.append(np.stack([data, data * (s.lane_wire_num[lane] / s.lane_wire_den[lane])], axis=1))
    return np.concatenate(sizes)


def usual_message(s: Schedules, index: int, size_bytes: int) -> tuple[float, float]:
    """Return data and payload in bytes of the median message."""
    sizes = np.concatenate([message_sizes(s, index, plan, size_bytes) for plan in sorted(set(_plans(s, index)))])
    data, payload = sizes[np.argsort(sizes[:, 0])[(len(sizes) - 1) // 2]].tolist()
    return data, payload


def pairs(s: Schedules, index: int, most: int) -> set[tuple[int, int]] | None:
    """Return (sender, receiver) of all messages; None = more than `most`, as far as that is known without a list."""
    members = int(s.members[index])
    if s.relative[index]:
        peer_offsets = offsets(s, index)
        if members * len(peer_offsets) > most:
            return None
        return {(m, peer(s, index, view, m, offset)) for m in range(members) for view, offset in peer_offsets}
    peers = peers_of_members(s, index)
    return {(m, p) for m in range(members) for p in peers[m]} if sum(map(len, peers)) <= most else None


def peers_of_members(s: Schedules, index: int) -> list[list[int]]:
    """Return the members to which each member sends, for a schedule with a plan per member."""
    peers = (np.unique(s.send_peer[_steps(s, plan)]).tolist() for plan in _plans(s, index))
    return [[p for p in own if p >= 0] for own in peers]


def offsets(s: Schedules, index: int) -> list[tuple[int, int]]:
    """Return (view, offset) of the peers to which a relative schedule sends; views of all schedules, -1 = none."""
    pairs: set[tuple[int, int]] = set()
    plan = _plans(s, index)[0]
    for lane in range(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1])):
        peers = np.unique(s.send_peer[s.lane_ptr[lane] : s.lane_ptr[lane + 1]])
        view = int(s.view_base[index] + s.lane_view[lane]) if s.lane_view[lane] >= 0 else -1
        pairs |= {(view, p) for p in peers[peers > 0].tolist()}
    return sorted(pairs)


def peer(s: Schedules, index: int, view: int, member: int, offset: int) -> int:
    """Return the member `offset` places after another, in its line of a view or in the group (view -1)."""
    if view < 0:
        return (member + offset) % int(s.members[index])
    size, first = int(s.view_size[view]), int(s.view_ptr[view])
    at = int(s.view_at[first + member])
    return int(s.view_member[first + at - at % size + (at + offset) % size])


def most_bytes(s: Schedules, index: int, size_bytes: int) -> int:
    """Return the maximum bytes that a member sends or receives, if all lanes work on the whole buffer."""
    max_chunks = 0
    for plan in _plans(s, index):
        steps = _steps(s, plan)
        for ends, count in ((s.send_peer, s.send_count), (s.recv_peer, s.recv_count)):
            max_chunks = max(max_chunks, int(count[steps][ends[steps] >= 0].sum()))
    return max_chunks * size_bytes // int(s.chunks[index])


def has_gates(s: Schedules, index: int) -> bool:
    """Return whether any phase waits for a token of its dimension."""
    return any((s.lane_gate[s.plan_ptr[plan] : s.plan_ptr[plan + 1]] >= 0).any() for plan in _plans(s, index))


def lanes_of(s: Schedules, index: int) -> slice:
    """Return the lanes of the plan of a relative schedule."""
    plan = _plans(s, index)[0]
    return slice(int(s.plan_ptr[plan]), int(s.plan_ptr[plan + 1]))


def steps_of(s: Schedules, index: int) -> slice:
    """Return the steps of the plan of a relative schedule."""
    return _steps(s, _plans(s, index)[0])


def _plans(s: Schedules, index: int) -> list[int]:
    return s.plan_of[s.plan_of_ptr[index] : s.plan_of_ptr[index + 1]].tolist()


def _steps(s: Schedules, plan: int) -> slice:
    return slice(int(s.lane_ptr[s.plan_ptr[plan]]), int(s.lane_ptr[s.plan_ptr[plan + 1]]))

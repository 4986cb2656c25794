"""Rings: the order in which each channel visits the members.

All members of a host stand together. Channel c enters and leaves a host over rail c or a neighbour of it, so that of as
many channels as there are rails each uses each NIC once in either direction, and a hop between hosts stays on its rail
(as SimAI and NCCL without NCCL_CROSS_NIC lay them).
"""

from workload.collectives.nccl.hosts import Hosts, hosts_of, on_rail, rails_of
from workload.shape import Shape


def ring(shape: Shape, channel: int) -> tuple[int, ...]:
    """The members in the order of a channel.

    Where hosts share less than two rails, three for an odd number of hosts, some hop leaves its rail: what enters an
    NPU of a host must leave by another one.
    """
    hosts = hosts_of(shape)
    rails = rails_of(shape, hosts)
    return tuple(m for h in range(len(hosts)) for m in _through(shape, hosts, rails, h, channel))


def _through(shape: Shape, hosts: Hosts, rails: tuple[int, ...], host: int, channel: int) -> list[int]:
    """The members of one host, from where the ring enters to where it leaves."""
    own = hosts[host]
    count = len(hosts)
    if count == 1:
        return _turned(own, own[channel % len(own)])
    entry = on_rail(shape, hosts, rails, host, channel + _turn(host, count))
    leave = on_rail(shape, hosts, rails, host, channel + _turn((host + 1) % count, count))
    order = _turned(own, entry)
    if leave != entry:
        order.remove(leave)
        order.append(leave)
    return order


def _turn(host: int, hosts: int) -> int:
    """0 or 1 by turns, 2 for the last of an odd number: neighbours round the circle of hosts differ."""
    return 2 if host == hosts - 1 and hosts % 2 else host % 2


def _turned(own: tuple[int, ...], first: int) -> list[int]:
    at = own.index(first)
    return [*own[at:], *own[:at]]

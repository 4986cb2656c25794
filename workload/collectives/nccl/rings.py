"""Rings: the order of the members in each channel.

All members of a host are consecutive. Channel c enters and leaves a host over rail c or a neighbour of it. If there are
as many channels as rails, each uses each NIC once per direction, and a hop between hosts stays on its rail (as in
SimAI, and in NCCL without NCCL_CROSS_NIC).
"""

from workload.shape import Shape

Hosts = tuple[tuple[int, ...], ...]  # the members of each host, by place


def hosts_of(shape: Shape) -> Hosts:
    """Return the members of each host."""
    members_of_host: list[list[int]] = [[] for _ in range(max(shape.host) + 1)]
    for member in sorted(range(shape.members), key=lambda m: shape.place[m]):
        members_of_host[shape.host[member]].append(member)
    return tuple(tuple(own) for own in members_of_host)


def rails_of(shape: Shape, hosts: Hosts) -> tuple[int, ...]:
    """Return the places that are occupied in every host."""
    return tuple(sorted(set.intersection(*({shape.place[m] for m in own} for own in hosts))))


def on_rail(shape: Shape, hosts: Hosts, rails: tuple[int, ...], host: int, number: int) -> int:
    """Return a host's member on the rail of a number (modulo); without common rails, its member of that number."""
    own = hosts[host]
    if not rails:
        return own[number % len(own)]
    return next(m for m in own if shape.place[m] == rails[number % len(rails)])


def ring(shape: Shape, channel: int) -> tuple[int, ...]:
    """Return the members in the order of a channel.

    If hosts share fewer than two rails, or fewer than three for an odd number of hosts, some hop changes its rail: the
    ring must leave a host by another NPU than the one by which it enters.
    """
    hosts = hosts_of(shape)
    rails = rails_of(shape, hosts)
    return tuple(m for h in range(len(hosts)) for m in _through(shape, hosts, rails, h, channel))


def _through(shape: Shape, hosts: Hosts, rails: tuple[int, ...], host: int, channel: int) -> list[int]:
    """Return the members of one host, from the ring's entry to its exit."""
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
    """Return 0 or 1 in alternation, 2 for the last of an odd number, so that neighbouring hosts differ."""
    return 2 if host == hosts - 1 and hosts % 2 else host % 2


def _turned(own: tuple[int, ...], first: int) -> list[int]:
    at = own.index(first)
    return [*own[at:], *own[:at]]

"""Members by host. The rail of a member is its place in its host: NIC j belongs to NPU j."""

from workload.shape import Shape

Hosts = tuple[tuple[int, ...], ...]
"""The members of each host, by place."""


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

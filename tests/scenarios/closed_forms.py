"""Closed forms of the packet model, to the picosecond, written without the code that they check.

A message of S bytes is M = ceil(S / mtu) packets (at least one, for S = 0), each `header` bytes longer on the wire than
its payload. A port sends L bytes in round(8e12 L / rate) ps. Switches, and NPUs in transit, store and forward. Below, P
is the time of a full packet, p of a message's last one, a of an acknowledgement.

Acknowledgements. Every data packet is answered by a packet of `ack` bytes, which goes before data in an NPU's port.
Where an NPU receives by the cable by which it sends, the acknowledgements of what it receives stand between its own
data; in a full stream there is one for each data packet, so that P becomes P + a (2 % for packets of 4 KiB): they are
part of the forms, not of the tolerance. `port_ps` counts them. Where data and acknowledgements never meet (a ring of
three or more sends data one way round and acknowledgements the other) there are none to count.

In the port of a switch they cost nothing more while all members move in step: what comes into the port towards an NPU
has the same lengths, in the same order and at the same rate, as what left each NPU, so nothing waits that has not been
spaced already. One exception: data shorter than the acknowledgement before it catches up with it, by a - p.
"""

from typing import NamedTuple


class Wire(NamedTuple):
    """Bytes of packets: payload of a full one, and what data and acknowledgements have around them."""

    mtu: int = 4096
    header: int = 82
    ack: int = 86

    @property
    def full(self):
        return self.mtu + self.header

    def packets(self, size_bytes):
        return max(1, -(-size_bytes // self.mtu))

    def last(self, size_bytes):
        return size_bytes - (self.packets(size_bytes) - 1) * self.mtu + self.header


class Hop(NamedTuple):
    """A way of one or more links of one rate; fixed_ps: their delays and the switches' latencies in all."""

    links: int
    fixed_ps: int


ROCE = Wire()


def bits_ps(size_bytes, rate_bps):
    """Time of a packet on a link, rounded once."""
    return round(size_bytes * 8e12 / rate_bps)


def train_ps(size_bytes, rates_bps, fixed_ps, wire=ROCE):
    """A message along links of these rates, alone: from the first bit sent to the last bit received.

    Packet i ends on link h at f(i, h) = max(f(i-1, h), f(i, h-1)) + L_i / B_h (delays and latencies, fixed_ps in all,
    only shift it). With M - 1 packets of P_h and a last one of p_h <= P_h the longest path through that recursion goes
    over to the last packet at some link k, having waited for the others at the slowest link up to k:

        T = fixed + max over k of (P_0 + ... + P_k) + (M - 2) max(P_0 ... P_k) + (p_k + ... + p_H)

    For equal packets that is the usual sum of P_h + (M - 1) max P_h.
    """
    count = wire.packets(size_bytes)
    full = [bits_ps(wire.full, rate) for rate in rates_bps]
    last = [bits_ps(wire.last(size_bytes), rate) for rate in rates_bps]
    if count == 1:
        return fixed_ps + sum(last)
    ways = range(1, len(full) + 1)
    return fixed_ps + max(sum(full[:k]) + (count - 2) * max(full[:k]) + sum(last[k - 1 :]) for k in ways)


def port_ps(count, packet_ps, last_ps, ack_ps, lag_ps):
    """Until an NPU's port has sent `count` packets while as many come in, and are acknowledged by the same port.

    What comes in has left its sender as what this port sends, and comes lag_ps later. The port sends what has been
    there before it falls idle, acknowledgements first. So packet i ends at (i + 1) P + n_i a, where n_i have come in
    before it starts: none up to i = 1 + lag / P, about one more for each packet from then on.
    """
    ends, answered, now = [], 0, 0
    for i in range(count):
        while answered < i and ends[answered] + lag_ps < now:
            answered += 1
            now += ack_ps
        now += last_ps if i == count - 1 else packet_ps
        ends.append(now)
    return now


def steps_ps(steps, size_bytes, hop, rate_bps, *, messages=1, shared=True, wire=ROCE):
    """Steps of a collective in which every member sends `messages` of size_bytes over like ways, all in step.

    A step waits for what the one before brings. Alone in its ports: T = steps (M P + onward), with
    onward = (links - 1) P + fixed. In shared ports the n acknowledgements of `port_ps` come to each step, and that of
    a step's last packet goes before the next step's data:

        T = steps (M P + n a + onward) + (steps - 1) (a + max(0, a - p))
    """
    count = messages * wire.packets(size_bytes)
    last = bits_ps(wire.last(size_bytes), rate_bps)
    packet = bits_ps(wire.full, rate_bps) if count > messages else last
    ack = bits_ps(wire.ack, rate_bps) if shared else 0
    onward = (hop.links - 1) * packet + hop.fixed_ps
    between = ack + (max(0, ack - packet) if hop.links > 1 else 0)
    return steps * (port_ps(count, packet, last, ack, onward) + onward) + (steps - 1) * between


def ring_ps(steps, size_bytes, hops, rate_bps, wire=ROCE):
    """Steps of a ring over unlike ways: hops[m] leads from member m to m + 1; all NPUs' ports are shared.

    Step k of member m begins when step k - 1 of member m - 1 has come in, so the chain of steps that begins with member
    c travels round the ring undisturbed and ends after the sum of its messages; the last of the n chains counts. The
    lag with which a port gets the data that it acknowledges is that of the chain behind: where it stands now.
    Left out: that an acknowledgement and data may wait for each other in a switch's port, where the chains are not in
    step (at most a for each message and link).
    """
    count = wire.packets(size_bytes)
    last = bits_ps(wire.last(size_bytes), rate_bps)
    packet = bits_ps(wire.full, rate_bps) if count > 1 else last
    ack = bits_ps(wire.ack, rate_bps)
    onward = [(hop.links - 1) * packet + hop.fixed_ps for hop in hops]
    members = range(len(hops))
    begin = [0] * len(hops)
    for step in range(steps):
        arrived = [
            begin[m] + port_ps(count, packet, last, ack, begin[m - 1] + onward[m - 1] - begin[m]) + onward[m]
            for m in members
        ]
        begin = [arrived[m - 1] + (ack if step < steps - 1 else 0) for m in members]
    return max(begin)


def fat_tree_hops(k, npus, *, link_ps, switch_ps):
    """Ways from each of the first `npus` NPUs of a k-ary fat tree to the next, and from the last to the first."""
    half, hops = k // 2, []
    for m in range(npus):
        after = (m + 1) % npus
        links = 2 if m // half == after // half else 4 if m // half**2 == after // half**2 else 6
        hops.append(Hop(links, links * link_ps + (links - 1) * switch_ps))
    return hops

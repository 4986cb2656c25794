"""Ring: everybody sends to the next member and receives from the one before.

All-reduce is a reduce-scatter and then an all-gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009); the buffer is cut into n chunks and a step moves one. Broadcast and reduce are open
rings: pipelined chains away from and towards the root.
"""

from workload.plans import Lane, Plans, each_its_own, everyone_alike

NAME = "ring"
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce")

CHAIN_CHUNKS = 16  # pieces in a chain's pipeline: 1/16 of the buffer fills each hop


def plan(kind: str, members: int) -> Plans:
    """One lane each; steps 2(n-1) for all-reduce, n-1 for its halves, at most CHAIN_CHUNKS + 1 for the chains."""
    if kind in {"broadcast", "reduce"}:
        return _chain(members, outwards=kind == "broadcast")
    lane = Lane()
    if kind != "all-gather":
        _reduce_scatter(lane, members)
    if kind != "reduce-scatter":
        _all_gather(lane, members)
    return everyone_alike(members, members, [lane])


def closed_form(kind: str, members: int, size_bytes: int, latency_ps: float, bytes_per_s: float) -> float:
    """2(n-1)(a + S/nB) for all-reduce, half of it for its halves; (n-2+k)(a + S/kB) for chains of k chunks.

    A chain's chunks follow each other without waiting for the latency, so of it only n-1 count.
    """
    if kind in {"broadcast", "reduce"}:
        chunk_ps = size_bytes / CHAIN_CHUNKS / bytes_per_s * 1e12
        return (members - 1) * latency_ps + (members - 2 + CHAIN_CHUNKS) * chunk_ps
    steps = (2 if kind == "all-reduce" else 1) * (members - 1)
    return steps * (latency_ps + size_bytes / members / bytes_per_s * 1e12)


def _reduce_scatter(lane: Lane, n: int) -> None:
    """The sum of a chunk travels once around and ends at the chunk's owner."""
    for k in range(n - 1):
        lane.step(send_to=1, send=(-1 - k) % n, receive_from=n - 1, receive=(-2 - k) % n, reduce=True)


def _all_gather(lane: Lane, n: int) -> None:
    """Every chunk travels once around, from its owner on."""
    for k in range(n - 1):
        lane.step(send_to=1, send=-k % n, receive_from=n - 1, receive=(-1 - k) % n)


def _chain(n: int, *, outwards: bool) -> Plans:
    return each_its_own(CHAIN_CHUNKS, ([_link(member, n, outwards=outwards)] for member in range(n)))


def _link(member: int, n: int, *, outwards: bool) -> Lane:
    """A member passes on each chunk while it receives the next."""
    before, after = (member - 1, member + 1) if outwards else (member + 1, member - 1)
    lane = Lane()
    if not 0 <= after < n:
        for chunk in range(CHAIN_CHUNKS if n > 1 else 0):
            lane.step(receive_from=before, receive=chunk, reduce=not outwards)
    elif not 0 <= before < n:
        for chunk in range(CHAIN_CHUNKS):
            lane.step(send_to=after, send=chunk)
    else:
        lane.step(receive_from=before, receive=0, reduce=not outwards)
        for chunk in range(1, CHAIN_CHUNKS):
            lane.step(send_to=after, send=chunk - 1, receive_from=before, receive=chunk, reduce=not outwards)
        lane.step(send_to=after, send=CHAIN_CHUNKS - 1)
    return lane

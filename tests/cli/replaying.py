"""Traces of all kinds of communication, to be replayed."""

from nadi import et

KIND = et.CollectiveCommType
SIZE = 24_000
COLLECTIVES = [kind for kind in KIND if kind is not KIND.REDUCE_SCATTER_BLOCK]


def nodes_of(rank, ranks):
    """All kinds over all ranks, then in the group "back", then an uneven all-to-all and a ring of messages."""
    nodes = [et.comp_node(1, "forward", duration_micros=2000)]
    for number, kind in enumerate(COLLECTIVES, 10):
        nodes.append(et.coll_node(number, f"all {kind.name}", kind, SIZE, deps=[nodes[-1].id]))
    if rank in {0, ranks - 1}:
        for number, kind in enumerate(COLLECTIVES, 30):
            nodes.append(et.coll_node(number, f"back {kind.name}", kind, SIZE, pg_name="back", deps=[1]))
    sent = [1 + (rank + member) % 3 for member in range(ranks)]
    came = [1 + (rank + member) % 3 for member in range(ranks)]
    uneven = {"in_split_size": [4 * size for size in sent], "out_split_size": [4 * size for size in came]}
    nodes.append(et.coll_node(60, "uneven", KIND.ALL_TO_ALL, 4 * sum(sent), deps=[nodes[-1].id], **uneven))
    nodes.append(et.send_node(61, "to the next", rank, (rank + 1) % ranks, 4096, 3, deps=[60]))
    nodes.append(et.recv_node(62, "from before", (rank - 1) % ranks, rank, 4096, 3, deps=[60]))
    nodes.append(et.comp_node(63, "end", duration_micros=10, deps=[61, 62]))
    return nodes


def write(folder, ranks):
    """Traces and the file of groups; the prefix."""
    for rank in range(ranks):
        et.write_trace(folder / f"trace.{rank}.et", et.metadata(), nodes_of(rank, ranks))
    (folder / "groups.json").write_text(f'{{"back": [{ranks - 1}, 0]}}')
    return folder / "trace"

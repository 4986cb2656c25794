"""MSCCL's XML by hand: thread blocks as (send, recv, chan, steps), a step as "type src dst xCOUNT <TB.STEP"."""


def step(number, text):
    """`s i0`: send chunk 0 of the input; `rrc o2`: src and dst alike; `cpy i0 o1 x2 <1.3`: after step 3 of tb 1."""
    kind, *words = text.split()
    after = next((word[1:].split(".") for word in words if word[0] == "<"), ("-1", "-1"))
    count = next((word[1:] for word in words if word[0] == "x"), "1")
    chunks = [word for word in words if word[0] in "ios"] or ["i-1"]
    src, dst = chunks[0], chunks[-1]
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{count}" depid="{after[0]}" deps="{after[1]}" hasdep="0"/>'
    )


def algo(coll, chunks, gpus, sizes=None, inplace=1, proto="Simple"):
    """The text of a file; gpus: thread blocks of each, sizes: lengths of i, o and s."""
    head = f'<algo name="by hand" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}" coll="{coll}" '
    lines = [head + f'inplace="{inplace}" proto="{proto}">']
    i, o, s = sizes or (chunks, 0, 0)
    for g, blocks in enumerate(gpus):
        lines.append(f'<gpu id="{g}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        for t, (send, recv, chan, steps) in enumerate(blocks):
            lines.append(f'<tb id="{t}" send="{send}" recv="{recv}" chan="{chan}">')
            lines += [step(k, text) for k, text in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def ring(n, proto="Simple"):
    """All-reduce in the chunks of the ring of workload.collectives, sends and receives apart."""
    gpus = []
    for g in range(n):
        sums = [text for k in range(n - 1) for text in (f"s i{(g - k - 1) % n}", f"rrc i{(g - k - 2) % n}")]
        copies = [text for k in range(n - 1) for text in (f"s i{(g - k) % n}", f"r i{(g - k - 1) % n}")]
        gpus.append([((g + 1) % n, (g - 1) % n, 0, sums + copies)])
    return algo("allreduce", n, gpus, proto=proto)


def fused_ring(n):
    """All-reduce, what comes sent on in the same step."""
    gpus = []
    for g in range(n):
        steps = [f"s i{g}"] + [f"rrcs i{(g - k - 1) % n}" for k in range(n - 1)]
        steps += [f"rcs i{(g - k) % n}" for k in range(n - 2)] + [f"r i{(g + 2) % n}"]
        gpus.append([((g + 1) % n, (g - 1) % n, 0, steps)])
    return algo("allreduce", n, gpus)


def all_pairs(n):
    """All-reduce: every GPU collects its part in scratch, adds, and sends it to all."""
    gpus = []
    for g in range(n):
        others = [p for p in range(n) if p != g]
        last = 2 * (n - 1) - 1
        blocks = [(p, p, 0, [f"s i{p}", f"r s{t}", f"s i{g} <{n - 1}.{last}", f"r i{p}"]) for t, p in enumerate(others)]
        adds = [f"nop <{t}.1" for t in range(n - 1)] + [f"re s{t} i{g}" for t in range(n - 1)]
        gpus.append([*blocks, (-1, -1, 0, adds)])
    return algo("allreduce", n, gpus, sizes=(n, 0, n - 1))


def hierarchical_all_gather(inplace=0):
    """Two boxes of two: between the boxes first, then within."""
    gpus = []
    for g in range(4):
        far, near, both = g ^ 2, g ^ 1, g ^ 3
        gpus.append(
            [
                (far, far, 0, ["s i0", f"r o{far}"]),
                (near, near, 0, ["s i0", f"r o{near}", f"s o{far} <0.1", f"r o{both}"]),
                *([] if inplace else [(-1, -1, 0, [f"cpy i0 o{g}"])]),
            ]
        )
    return algo("allgather", 4, gpus, sizes=(1, 4, 0), inplace=inplace)


def sum_chain(n):
    """Reduce to GPU 0 along a chain; those in the middle keep nothing."""
    gpus = []
    for g in range(n):
        before, after = (g + 1 if g < n - 1 else -1), g - 1
        steps = ["rrc i0 x2"] if g == 0 else ["rrs i0 x2"] if g < n - 1 else ["s i0 x2"]
        gpus.append([(after, before, 0, steps)])
    return algo("reduce", 2, gpus)


def exchange_of_two(inplace):
    """All-to-all of two GPUs; in place through scratch that is longer than the buffer."""
    gpus = []
    for g in range(2):
        p = 1 - g
        steps = [f"cpy i{p} s4", "s s4", f"r i{p}"] if inplace else [f"cpy i{g} o{g}", f"s i{p}", f"r o{p}"]
        gpus.append([(p, p, 0, steps)])
    return algo("alltoall", 2, gpus, sizes=(2, 0 if inplace else 2, 5 if inplace else 0), inplace=inplace)


def reduce_scatter_of_two(inplace):
    """Each sends the other's half; out of place the sum is made in the output."""
    out = "i{}" if inplace else "o0"
    gpus = []
    for g in range(2):
        p, own = 1 - g, out.format(g)
        gpus.append([(p, p, 0, [f"s i{p}", f"rrc i{g} {own}"])])
    return algo("reduce_scatter", 2, gpus, sizes=(2, 0 if inplace else 1, 0), inplace=inplace)

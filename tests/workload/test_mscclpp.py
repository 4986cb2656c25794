"""Execution plans of MSCCL++, by hand: what `read_custom` accepts does what the kind promises (the oracle runs it)."""

import json

import pytest

from nadi.inputs import kind_of
from nadi.workload.collectives.custom import read_custom
from nadi.workload.errors import WorkloadError
from tests.cli.conftest import nadi  # noqa: F401 - a fixture
from tests.refusals import refused


def at(where, count=1):
    """`i3`: chunk 3 of the input; `0:3`: chunk 3 of remote buffer 0."""
    if ":" in where:
        buffer, index = map(int, where.split(":"))
        return {"buffer_id": buffer, "index": index, "size": count}
    return {"type": where[0], "index": int(where[1:]), "size": count}


def op(name, sources="", targets="", channels=(), count=1, **more):
    found = {"name": name, "channel_type": "memory", **more}
    if sources:
        found["src_buff"] = [at(where, count) for where in sources.split()]
    if targets:
        found["dst_buff"] = [at(where, count) for where in targets.split()]
    return found | ({"channel_ids": list(channels)} if channels else {})


def plan(collective, chunks, gpus, remote, protocol="Simple", inplace=True, semaphores=()):
    """The plan of GPUs with thread blocks of operations; all have a channel to each other, and remote buffers of these.

    remote: letters of the buffers; buffer (number of the peer among the others) * len(remote) + letter.
    """
    n, found = len(gpus), []
    for g, blocks in enumerate(gpus):
        others = [p for p in range(n) if p != g]
        buffers = [{"rank": p, "type": letter, "access_channel_types": ["memory"]} for p in others for letter in remote]
        made = [
            {
                "id": b,
                "ops": ops,
                "channels": [{"channel_type": "memory", "channel_ids": list(range(n - 1))}],
                "remote_buffer_refs": [
                    {"access_channel_type": "memory", "remote_buffer_ids": list(range(len(buffers)))}
                ],
            }
            for b, ops in enumerate(blocks)
        ]
        sizes = dict(zip(("input_chunks", "output_chunks", "scratch_chunks"), chunks, strict=True))
        channels = [{"channel_type": "memory", "connected_to": others}]
        own = {"id": g, **sizes, "threadblocks": made, "channels": channels, "remote_buffers": buffers}
        found.append(own | {"semaphores": [{"init_value": value} for value in semaphores]})
    return {"name": "by hand", "collective": collective, "protocol": protocol, "inplace": inplace, "gpus": found}


def read(tmp_path, content, kind):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    assert kind_of(path).key == "mscclpp"
    return read_custom(path, kind)


def all_pairs(n):
    """All-gather: each puts its part into the output of all others, then signals, then waits."""
    gpus = []
    for g in range(n):
        peers = range(n - 1)
        puts = [op("put", f"o{g}", f"{p}:{g}") for p in peers]
        signals = [op("signal", channels=peers), op("wait", channels=peers)]
        gpus.append([[*puts, op("nop"), *signals]])
    return plan("allgather", (1, n, 0), gpus, "o")


def read_reduce(n):
    """All-reduce in place: each reads its part from all, adds it, and puts the sum back; signals before and after."""
    gpus = []
    for g in range(n):
        peers = range(n - 1)
        both = [op("rlxsignal", channels=peers), op("rlxwait", channels=peers)]
        sources, targets = " ".join(f"{p}:{g}" for p in peers), " ".join(f"{p}:{g}" for p in peers)
        gpus.append([[*both, op("rres", f"i{g} {sources}", f"i{g} {targets}"), *both]])
    return plan("allreduce", (n, n, 0), gpus, "i")


def packets(n):
    """All-reduce of small buffers: each sends all of its buffer to all others as packets, and adds what comes."""
    gpus = []
    for g in range(n):
        slots = [p * n for p in range(n - 1)]
        places = [(g if g < peer else g - 1) * n for peer in range(n) if peer != g]  # where each peer expects it
        sends = [op("ppkt", "i0", f"{p}:{place}", count=n) for p, place in enumerate(places)]
        adds = op("repkt", "i0 " + " ".join(f"s{slot}" for slot in slots), "i0", count=n)
        gpus.append([[*sends, adds]])
    return plan("allreduce", (n, n, n * (n - 1)), gpus, "s", protocol="LL")


def two_blocks(sync):
    """All-reduce of two GPUs, of which one thread block copies to scratch space that another sends."""
    first, second = sync
    gpus = [
        [
            [op("copy", "i0", "s0", count=2), *first],
            [
                *second,
                op("put", "s0", "0:2", count=2),
                op("signal", channels=[0]),
                op("wait", channels=[0]),
                op("re", "i0 s2", "i0", count=2),
            ],
        ]
        for _ in range(2)
    ]
    return plan("allreduce", (2, 2, 4), gpus, "s", semaphores=[0])


BARRIER = op("barrier", barrier_id=0, num_threadblocks=2)
SEMAPHORES = [op("sem_release", semaphore_ids=[0])], [op("sem_acquire", semaphore_ids=[0])]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    ("make", "kind"), [(all_pairs, "all-gather"), (read_reduce, "all-reduce"), (packets, "all-reduce")]
)
def test_plans_do_what_the_collective_promises(tmp_path, n, make, kind):
    assert read(tmp_path, make(n), kind).members == n


@pytest.mark.parametrize("sync", [([BARRIER], [BARRIER]), SEMAPHORES])
def test_thread_blocks_wait_for_each_other(tmp_path, sync):
    assert read(tmp_path, two_blocks(sync), "all-reduce").members == 2


def test_without_the_synchronisation_there_is_a_race(tmp_path):
    with pytest.raises(WorkloadError, match="at the same time"):
        read(tmp_path, two_blocks(([], [])), "all-reduce")


def test_packets_from_another_thread_block_and_groups_of_thread_blocks(tmp_path):
    """As transfer_pack.json of MSCCL++: one GPU copies into its own packets, another thread block sends them."""
    half = [{"tbg_info": {"tb_id": k, "tbg_size": 2}} for k in range(2)]
    gpus = [
        [
            *[[op("cpkt", f"o{g}", f"s{g}", **part)] for part in half],
            [op("rppkt", f"s{g}", f"0:{g}")],
            [op("upkt", f"s{1 - g}", f"o{1 - g}")],
        ]
        for g in range(2)
    ]
    assert read(tmp_path, plan("allgather", (1, 2, 2), gpus, "s", protocol="LL"), "all-gather").members == 2


def test_sums_of_packets_by_groups_of_thread_blocks(tmp_path):
    """Each of two GPUs sends half of its buffer, adds the other half and sends the sum, kept as packets too on one."""
    half = [{"tbg_info": {"tb_id": k, "tbg_size": 2}} for k in range(2)]
    sums = op("respkt", "i0 s0", "i0 0:0"), op("recspkt", "i1 s1", "i1 s2 0:1")
    gpus = []
    for g in range(2):
        ops = op("ppkt", f"i{1 - g}", f"0:{1 - g}"), sums[g], op("upkt", f"s{1 - g}", f"i{1 - g}")
        gpus.append([[each | part] for each in ops for part in half])
    content = plan("allreduce", (2, 2, 3), gpus, "s", protocol="LL")
    assert read(tmp_path, content, "all-reduce").members == 2


def test_two_channels_of_one_pair_over_ports(tmp_path):
    """A thread block of each channel: one puts and signals in one operation, the other in two; one GPU flushes."""
    meet = [op("signal", channels=[0]), op("wait", channels=[0])]
    flush = op("flush", channels=[0])
    first = [
        [*meet, op("put", "o0", "0:0", [0]), op("signal", channels=[0]), flush, op("wait", channels=[0])],
        [*meet, op("pws", "o1", "0:1", [0]), flush],
    ]
    second = [
        [*meet, op("pwsf", "o2", "0:2", [0], count=2), op("wait", channels=[0])],
        [*meet, op("wait", channels=[0])],
    ]
    content = plan("allgather", (2, 4, 0), [first, second], "o")
    for gpu in content["gpus"]:
        gpu["channels"][0]["connected_to"] *= 2
        gpu["threadblocks"][1]["channels"][0]["channel_ids"] = [1]
    content = json.loads(json.dumps(content).replace('"memory"', '"port"'))
    assert read(tmp_path, content, "all-gather").members == 2


def test_reads_puts_and_sums_of_both_kinds(tmp_path):
    """As reduce.json of MSCCL++: buffer 0 is the other's input, buffer 1 its scratch space."""
    meet = [op("signal", channels=[0]), op("wait", channels=[0])]
    first = [
        op("copy", "i2", "s2", count=2),
        *meet,
        op("rres", "i0 1:0", "i0 0:0"),
        op("get", "1:1", "s1", channels=[0]),
        op("res", "i1 s1", "i1 0:1"),
        *meet,
    ]
    second = [
        op("copy", "i0", "s0", count=2),
        *meet,
        op("rre", "i2 0:2", "i2", count=2),
        op("copy", "i2", "s2", count=2),
        op("put", "s2", "0:2", count=2),
        *meet,
    ]
    assert read(tmp_path, plan("allreduce", (4, 4, 4), [[first], [second]], "is"), "all-reduce").members == 2


def test_a_pipeline_and_an_output_of_its_own(tmp_path):
    gpus = [
        [
            [
                {
                    "name": "pipeline",
                    "iter_context": {"unit_size": 1024, "num_chunks": 1},
                    "ops": [
                        op("copy", "i0", f"o{g}"),
                        op("pws", "i0", f"0:{g}", channels=[0]),
                        op("wait", channels=[0]),
                    ],
                }
            ]
        ]
        for g in range(2)
    ]
    assert read(tmp_path, plan("allgather", (1, 2, 0), gpus, "o", inplace=False), "all-gather").members == 2


@pytest.mark.parametrize(("make", "kind"), [(read_reduce, "all-reduce"), (all_pairs, "all-gather")])
def test_a_plan_takes_about_as_long_as_direct_messages(nadi, tmp_path, make, kind):  # noqa: F811 - the fixture
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(make(4)))
    topology = ("-t", "switch:npus=4,rate=400Gbps,delay=1us", "--sizes", "16MiB", "-q", "--json")
    outcome = nadi("collective", kind, *topology, "--algorithm", f"custom:file={path},direct")
    assert outcome.code == 0
    times = {row["algorithm"].partition(":")[0]: row["time_ps"] for row in json.loads(outcome.out)["rows"]}
    assert times["custom"] == pytest.approx(times["direct"], rel=0.06)  # one byte each way before, and after


def test_sizes_out_of_a_plans_range_are_refused(nadi, tmp_path):  # noqa: F811 - the fixture
    """As by checkMessageSize in execution_plan.cc of MSCCL++, for each size of a run, and for closed forms."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(read_reduce(4) | {"min_message_size": 1 << 20, "max_message_size": 4 << 20}))
    options = ("collective", "all-reduce", "-t", "switch:npus=4", "-q", "--algorithm", f"custom:file={path}")
    assert nadi(*options, "--sizes", "1MiB,4MiB").code == 0
    assert nadi(*options, "--sizes", "1MiB,3MiB,4MiB", "--fidelity", "closed-form").code == 0
    for sizes, wrong in (("1048575B", 1048575), ("1MiB,4194305B,2MiB", 4194305)):
        found = nadi(*options, "--sizes", sizes)
        assert found.code == 2
        assert f"plan.json: all-reduce of {wrong} B, expected min_message_size 1048576 B to max_" in found.err
    path.write_text(json.dumps(read_reduce(4) | {"max_message_size": 2**64 - 1}))  # as MSCCL++ writes by default
    assert nadi(*options, "--sizes", "1B").code == 0


def gpu(content):
    return content["gpus"][0]


def block(content):
    return gpu(content)["threadblocks"][0]


def add_switch(gpu):
    """Let an NVSwitch add and copy, as reduce_nvls.json of MSCCL++ does."""
    gpu["channels"].append(
        {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 3, "ranks": [0, 1, 2]}]}
    )
    gpu["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
    part = [{"switch_channel_id": 0, "index": 0, "size": 1}]
    gpu["threadblocks"][0]["ops"].append(
        {"name": "glres", "src_buff": part, "dst_buff": part, "channel_type": "switch", "reduce_op": "sum"}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(gpus=p["gpus"][:1]), "protocol 'Simple' of 1 GPUs"),
        (lambda p: p.update(protocol="X"), "protocol 'X'"),
        (lambda p: p.update(collective="sendrecv"), "collective 'sendrecv', expected 'allgather'"),
        (lambda p: p["gpus"][1].update(id=7), "gpu 1: id 7"),
        (lambda p: gpu(p).update(inputChunks=1), "before version 0.7"),
        (lambda p: add_switch(gpu(p)), "gpu 0 tb 0 op 5: 'glres', expected another operation, as switches that add"),
        (lambda p: block(p)["ops"].append({"name": "x"}), "op 5: 'x', expected another"),
        (lambda p: block(p)["ops"].pop(3), "gpu 1 tb 0 op 4: waits for a signal of gpu 0"),
        (lambda p: block(p)["ops"].append(op("wait", channels=[0])), "that does not come"),
        (lambda p: block(p)["ops"].append(op("wait", channels=[5])), "channel_ids 5"),
        (lambda p: block(p)["ops"].append(BARRIER), "waits for thread blocks that do not come"),
        (lambda p: block(p)["ops"].append(op("put", "o9", "0:0")), "chunks 9 .. 9 of o"),
        (lambda p: block(p)["ops"].append(op("put", "o0", "9:0")), "buffer_id 9"),
        (lambda p: block(p)["ops"].pop(0), "no all-gather"),
        (lambda p: gpu(p)["remote_buffers"][0].update(type="q"), "type 'q' of a remote buffer"),
        (lambda p: gpu(p)["channels"][0].update(connected_to=[0]), "connected_to 0, expected other GPUs"),
        (lambda p: gpu(p).update(output_chunks=10**9), "output_chunks 1000000000"),
        (lambda p: gpu(p).update(threadblocks=3), "threadblocks: '3', expected a list"),
        (lambda p: p.update(inplace=[[]]), ""),
        (lambda p: p.update(min_message_size=-1), "min_message_size -1, expected a whole number from 0"),
        (
            lambda p: p.update(min_message_size=9, max_message_size=8),
            "max_message_size 8, expected a whole number from 9",
        ),
        (lambda p: p.update(max_message_size="1MiB"), "max_message_size 1MiB, expected a whole number from 0"),
        (lambda p: gpu(p)["channels"][0].update(connected_to=3), "connected_to: '3', expected a list"),
        (lambda p: gpu(p)["remote_buffers"][0].update(type=["i"]), "of a remote buffer, expected i, o or s"),
        (lambda p: block(p)["channels"][0].update(channel_ids=10**30), "expected a list"),
        (
            lambda p: block(p)["remote_buffer_refs"][0].update(remote_buffer_ids=True),
            "remote_buffer_ids: 'True', expected a list",
        ),
        (lambda p: block(p)["ops"][0]["src_buff"][0].update(type={}), "of type i, o or s, expected one of both"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path, change, message):
    content = all_pairs(3)
    change(content)
    assert message in refused(WorkloadError, read, tmp_path, content, "all-gather")

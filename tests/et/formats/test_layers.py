"""Workloads of layers: small files against what one finds by hand from the original's loops, and the real files."""

import numpy as np
import pytest

from nadi.et.formats import format_of, formats
from nadi.et.reader import collective_name
from nadi.et.schema import NodeType
from tests.et.checked import checked_tables
from tests.et.parents import parents_of
from tests.nonempty import nonempty

ASTRA, SIMAI = formats()["astra-sim"], formats()["simai"]
TWO = """2
a -1 1000 ALLREDUCE 10 2000 ALLTOALL 20 3000 ALLREDUCE 30 1000
b -1 4000 ALLGATHER 40 5000 REDUCESCATTER 50 6000 ALLREDUCE 60 2000
"""


def read(tmp_path, text, module=ASTRA, **options):
    (tmp_path / "x.txt").write_text(text)
    return module.read([tmp_path / "x.txt"], {"npus": "8", **options})


def told(table):
    """Each node: what it is, microseconds or bytes, and the nodes that it waits for."""
    found = []
    for row, name in enumerate(table.names):
        _, phase, layer, _ = name.split("/")
        if table.type[row] == NodeType.COMM_COLL_NODE:
            what, much = collective_name(int(table.comm_type[row])), int(table.comm_size[row])
        else:
            what, much = "host" if table.is_cpu_op[row] else "comp", int(table.duration_micros[row])
        found.append((phase, layer[7:], what, much, parents_of(table, row)))
    return found


def test_data_parallel_layers_have_no_collective_forward_and_no_input_gradient_of_the_first(tmp_path):
    assert told(read(tmp_path, "DATA\n" + TWO).tables[5]) == [
        ("forward", "a", "comp", 1, []),
        ("forward", "b", "comp", 4, [0]),
        ("backward-weights", "b", "comp", 6, [1]),
        ("backward-weights", "b", "all-reduce", 60, [2]),
        ("update", "b", "host", 2, [3]),
        ("backward", "b", "comp", 5, [2]),
        ("backward-weights", "a", "comp", 3, [5]),
        ("backward-weights", "a", "all-reduce", 30, [6]),
        ("update", "a", "host", 1, [7]),
    ]


def test_the_next_step_waits_for_a_layers_weights_before_its_forward_pass(tmp_path):
    nodes = told(read(tmp_path, "DATA\n" + TWO, passes="2").tables[0])
    assert len(nodes) == 18
    assert nodes[9] == ("forward", "a", "comp", 1, [6, 8])
    assert nodes[10] == ("forward", "b", "comp", 4, [4, 9])


def test_transformers_wait_for_collectives_of_both_passes_but_not_for_those_of_weights(tmp_path):
    text = "HYBRID_TRANSFORMER model_parallel_NPU_group: 4\n" + TWO
    traces = read(tmp_path, text)
    assert told(traces.tables[0]) == [
        ("forward", "a", "comp", 1, []),
        ("forward", "a", "all-reduce", 10, [0]),
        ("forward", "b", "comp", 4, [1]),
        ("forward", "b", "all-gather", 40, [2]),
        ("backward", "b", "comp", 5, [3]),
        ("backward", "b", "reduce-scatter", 50, [4]),
        ("backward-weights", "b", "comp", 6, [5]),
        ("backward-weights", "b", "all-reduce", 60, [6]),
        ("update", "b", "host", 2, [7]),
        ("backward", "a", "comp", 2, [6]),
        ("backward", "a", "all-to-all", 20, [9]),
        ("backward-weights", "a", "comp", 3, [10]),
        ("backward-weights", "a", "all-reduce", 30, [11]),
        ("update", "a", "host", 1, [12]),
    ]
    table = traces.tables[6]
    of_group = [traces.groups[table.group_names[g]] for g in table.group[[1, 7]].tolist()]
    assert of_group == [(4, 5, 6, 7), (2, 6)]


@pytest.mark.parametrize(
    ("policy", "forward", "weights"),
    [("HYBRID_DATA_MODEL", 0b1, 0b1111111110), ("HYBRID_MODEL_DATA", 0b1111111110, 0b1)],
)
def test_hybrids_wait_for_input_gradients_behind_weight_gradients_and_use_dimensions(
    tmp_path, policy, forward, weights
):
    table = read(tmp_path, f"{policy}\n{TWO}").tables[0]
    nodes = told(table)
    assert nodes[4:8] == [
        ("backward", "b", "comp", 5, [3]),
        ("backward", "b", "reduce-scatter", 50, [4]),
        ("backward-weights", "b", "comp", 6, [4]),
        ("backward-weights", "b", "all-reduce", 60, [6]),
    ]
    assert nodes[9] == ("backward", "a", "comp", 2, [5, 6])
    assert [n[2] for n in nodes[10:]] == ["comp", "all-reduce", "host"]  # layer 0 sends no input gradients
    dims = {nodes[row][0]: int(table.involved_dim[row]) for row in np.flatnonzero(table.involved_dim >= 0)}
    assert dims == {"forward": forward, "backward": forward, "backward-weights": weights}


def test_model_parallel_layers_have_no_collective_of_weights_and_inference_only_goes_forward(tmp_path):
    kinds = [n[2] for n in told(read(tmp_path, "MODEL\n" + TWO).tables[0])]
    assert kinds == ["comp", "all-reduce", "comp", "all-gather", "comp", "reduce-scatter", "comp", "comp", "comp"]
    kinds = [n[2] for n in told(read(tmp_path, "DISTRIBUTED_INFERENCE\n" + TWO).tables[0])]
    assert kinds == ["comp", "all-reduce", "comp", "all-gather"]


def test_customized_layers_say_their_policy_each(tmp_path):
    lines = TWO.splitlines()
    text = "HYBRID_CUSTOMIZED\n2\n" + lines[1] + " HYBRID_DATA_MODEL\n" + lines[2] + " HYBRID_MODEL_DATA\n"
    table = read(tmp_path, text).tables[0]
    assert [int(table.involved_dim[row]) for row in (1, 3)] == [0b1, 0b1111111110]


def test_checkpoints_are_computed_forward_again(tmp_path):
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 checkpoints: 1 0 checkpoint_initiates: 1 1\n"
    nodes = told(read(tmp_path, head + TWO).tables[0])
    assert [n[:3] for n in nodes[3:7]] == [
        ("forward", "b", "all-gather"),
        ("forward-again", "a", "comp"),
        ("forward-again", "a", "all-reduce"),
        ("backward", "b", "comp"),
    ]


def test_dlrm_waits_for_the_embeddings_behind_the_last_layer_below(tmp_path):
    text = (
        "HYBRID_DLRM 1\n3\n"
        "e -1 1000 ALLTOALL 8 1000 ALLTOALL 9 1000 NONE 0 1\n"
        "m -1 2000 NONE 0 2000 NONE 0 2000 ALLREDUCE 5 0\n"
        "t -1 3000 NONE 0 3000 NONE 0 3000 NONE 0 0\n"
    )
    assert told(read(tmp_path, text).tables[0]) == [
        ("forward", "e", "comp", 1, []),
        ("forward", "e", "all-to-all", 8, [0]),
        ("forward", "m", "comp", 2, [0]),
        ("forward", "t", "comp", 3, [1, 2]),
        ("backward-weights", "t", "comp", 3, [3]),
        ("backward", "t", "comp", 3, [4]),
        ("backward", "e", "all-to-all", 9, [5]),
        ("backward-weights", "m", "comp", 2, [5]),
        ("backward-weights", "m", "all-reduce", 5, [7]),
        ("backward", "m", "comp", 2, [7]),
        ("backward-weights", "e", "comp", 1, [9]),
    ]


def test_simai_rounds_small_sizes_up_and_counts_gathered_buffers(tmp_path):
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 2 all_gpus: 16\n1\n"
    text = head + "a -1 1500 ALLGATHER 1000 700 ALLTOALL_EP 1000 900 ALLGATHER_DP_EP 1001 100\n"
    traces = read(tmp_path, text, SIMAI, npus="16")
    assert [n[1:4] for n in told(traces.tables[0])] == [
        ("a", "comp", 1),
        ("a", "all-gather", 2048),  # 4,096 of 2 members
        ("a", "comp", 1),  # 500 ns from before and 700 ns
        ("a", "all-to-all", 1000),
        ("a", "comp", 1),  # 200 ns and 900 ns
        ("a", "all-gather", 501),
    ]
    table = traces.tables[11]
    of_group = {traces.groups[table.group_names[g]] for g in table.group[[1, 3, 5]].tolist()}
    assert of_group == {(10, 11), (9, 11), (11, 15)}  # second stage, second tensor rank, replica 1 of 4


PIPELINE = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 pp: {pp} vpp: {vpp} ga: {ga} all_gpus: {npus} "
PIPELINE += "pp_comm {size}\n"


def pipeline_of(pp, vpp, ga, npus, size=64):
    """A file of AICB's form: a layer before the micro-batches, an embedding and two layers each, and one behind."""
    layer = " -1 1000 NONE 0 2000 NONE 0 1000 NONE 0 0\n"
    batch = ["embedding_layer", "attention_layer", "mlp_layer", "attention_layer", "mlp_layer"]
    lines = ["grad_gather", *batch * ga, "cross_entropy1"]
    text = PIPELINE.format(pp=pp, vpp=vpp, ga=ga, npus=npus, size=size) + f"{len(lines)}\n"
    return text + "".join(line + layer for line in lines)


def messages_of(table):
    """What a trace sends and receives, in order: kind, peer, name."""
    kinds = {NodeType.COMM_SEND_NODE: ("send", table.comm_dst), NodeType.COMM_RECV_NODE: ("recv", table.comm_src)}
    found = []
    for row, name in enumerate(table.names):
        if table.type[row] in kinds:
            kind, peer = kinds[table.type[row]]
            found.append((kind, int(peer[row]), *name.split("/")[1:3]))
    return found


def test_stages_exchange_each_micro_batch(tmp_path):
    traces = read(tmp_path, pipeline_of(pp=3, vpp=1, ga=2, npus=6), SIMAI, npus="6")
    assert messages_of(traces.tables[1]) == [
        ("send", 3, "forward", "microbatch0-chunk0"),
        ("send", 3, "forward", "microbatch1-chunk0"),
        ("recv", 3, "backward", "microbatch1-chunk0"),
        ("recv", 3, "backward", "microbatch0-chunk0"),
    ]
    assert messages_of(traces.tables[2])[:2] == [
        ("recv", 0, "forward", "microbatch0-chunk0"),
        ("send", 4, "forward", "microbatch0-chunk0"),
    ]


def test_chunks_go_round_the_stages_for_as_many_micro_batches_as_there_are(tmp_path):
    traces = read(tmp_path, pipeline_of(pp=2, vpp=2, ga=3, npus=2), SIMAI, npus="2")
    sent = [name for kind, _, phase, name in messages_of(traces.tables[1]) if (kind, phase) == ("send", "forward")]
    assert sent == ["microbatch0-chunk1", "microbatch1-chunk1", "microbatch2-chunk1"]
    received = [name for kind, _, phase, name in messages_of(traces.tables[1]) if (kind, phase) == ("recv", "forward")]
    assert received == [f"microbatch{m}-chunk{c}" for m, c in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]]


@pytest.mark.parametrize(("pp", "vpp", "ga"), [(2, 1, 1), (2, 2, 4), (4, 2, 3), (4, 1, 8)])
def test_each_message_of_a_pipeline_has_both_ends_and_nothing_waits_for_itself(tmp_path, pp, vpp, ga):
    npus = 2 * pp
    traces = read(tmp_path, pipeline_of(pp, vpp, ga, npus), SIMAI, npus=str(npus))
    report = checked_tables(tmp_path / "out", traces.tables, groups=traces.groups)
    assert (report.count("error"), report.count("warning")) == (0, 0), report.described(2)
    hops = 2 * (pp * vpp - 1) * ga * 2  # forward and backward, of two replicas
    assert sum(len(messages_of(traces.tables[npu])) for npu in range(npus)) == 2 * hops


def test_blocks_that_are_not_aicbs_are_one_micro_batch(tmp_path):
    text = pipeline_of(pp=2, vpp=2, ga=2, npus=2).replace("ga: 2", "ga: 5")
    told_messages = messages_of(read(tmp_path, text, SIMAI, npus="2").tables[0])
    assert [name for *_, name in told_messages] == ["microbatch0-chunk0"] * 2
    silent = pipeline_of(pp=2, vpp=2, ga=2, npus=2, size=0)
    assert messages_of(read(tmp_path, silent, SIMAI, npus="2").tables[0]) == []


@pytest.mark.parametrize(
    ("name", "module", "npus", "counts", "nanos"),
    [
        ("astra-sim/text_workloads/Resnet50_DataParallel.txt", ASTRA, 8, {"all-reduce": (54, "wg")}, None),
        ("astra-sim/text_workloads/microAllReduce.txt", ASTRA, 4, {"all-reduce": (1, "wg")}, 0),
        (
            "astra-sim/text_workloads/DLRM_HybridParallel.txt",
            ASTRA,
            8,
            {"all-reduce": (7, "wg"), "all-to-all": (2, "")},
            None,
        ),
        ("simai/microAllReduce.txt", SIMAI, 8, {"all-reduce": (2, "fwd")}, None),
        ("simai/G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1_A100.txt", SIMAI, 16, {"reduce-scatter": (1, "wg")}, None),
        ("simai/L7B-D1-C02_Llama7B_deepspeed_zero3_A100.txt", SIMAI, 4, {"reduce-scatter": (1, "wg")}, None),
    ],
)
def test_real_files_keep_their_collectives_bytes_and_times(shared_data, tmp_path, name, module, npus, counts, nanos):
    path = shared_data / name
    assert formats()[format_of(path)] is module
    table = (traces := module.read([path], {"npus": str(npus)})).tables[0]
    rows = [line.split() for line in path.read_text().splitlines()[2:] if line.strip()]
    column = {"fwd": 3, "ig": 6, "wg": 9}
    kinds = np.array([collective_name(k) for k in table.comm_type.tolist()])
    for kind, (count, phase) in nonempty(counts.items()):
        mine = (kinds == kind) & (table.type == NodeType.COMM_COLL_NODE)
        assert np.count_nonzero(mine) == count
        if phase:
            word = kind.replace("-", "").upper()
            said = sum(int(row[column[phase] + 1]) for row in rows if row[column[phase]] == word)
            assert int(table.comm_size[mine].sum()) == said
    if nanos is None:  # layer 0 of data parallelism has no input gradients
        first = int(rows[0][5]) if module is ASTRA else 0
        nanos = sum(int(row[i]) for row in rows for i in (2, 5, 8)) - first
    compute = (table.type == NodeType.COMP_NODE) & ~table.is_cpu_op
    assert int(table.duration_micros[compute].sum()) == nanos // 1000
    report = checked_tables(tmp_path / "out", traces.tables, groups=traces.groups)
    assert (report.count("error"), report.count("warning")) == (0, 0), report.described(2)


def test_the_largest_real_file_is_of_9216_gpus(shared_data):
    traces = SIMAI.read([shared_data / "simai" / "workload_analytical.txt"], {})
    assert len(traces.tables) == 9216
    assert traces.report["data"] == 384
    sizes = sorted({len(members) for members in traces.groups.values()})
    assert sizes == [2, 16, 24, 384]
    npu = 5000
    table = traces.tables[npu]
    for group in nonempty(np.unique(table.group[table.type == NodeType.COMM_COLL_NODE]).tolist()):
        assert npu in traces.groups[table.group_names[group]]

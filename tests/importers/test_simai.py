"""`nadi simai`: SimAI's own files, its published bus bandwidths, and what its code takes other than its pages say."""

import pytest
from pyarrow import parquet

from nadi.errors import ConfigError
from nadi.et import CollectiveCommType
from nadi.et.layers.file import read_layers
from nadi.importers.simai import SimaiOptions, read_busbw, read_workload, trace_set, translated
from tests.nonempty import nonempty

HEAD = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: 1 pp: {pp} vpp: {vpp} ga: {ga} {more}\n"
BUSBW = """test
TP:
  allreduce,: 300      # AllReduce busbw 300GB/s in TP
  allgather,: 280
  reducescatter,: 280
  alltoall,: 230
DP:
allreduce,: null
allgather,: 380
reducescatter,: 380
alltoall,: null
EP:
  allreduce,: null
  allgather,: 45
  reducescatter,: 45
  alltoall,: 80
PP:
  busbw: 47.5
"""
GIB = 1 << 30


def workload(tmp_path, *lines, tp=8, pp=1, vpp=1, ga=1, more=""):
    text = (
        HEAD.format(tp=tp, pp=pp, vpp=vpp, ga=ga, more=more)
        + f"{len(lines)}\n"
        + "".join(f"{each}\n" for each in lines)
    )
    (tmp_path / "w.txt").write_text(text)
    return tmp_path / "w.txt"


def named(tmp_path, text, name):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def busbw_gibps(folder):
    """Bus bandwidth of the collectives in a folder of results, by bytes."""
    table = parquet.read_table(folder / "collectives.parquet").to_pylist()
    return {row["bytes"]: row["busbw_Bps"] / GIB for row in table}


@pytest.mark.parametrize(
    ("name", "topology", "gpus"),
    [
        ("microAllReduce.txt", "Spectrum-X_8g_8gps_400Gbps_H100", ()),
        ("microAllReduce.txt", "DCN+SingleToR_128g_8gps_400Gbps_H100", ("-g", 16)),
        ("L7B-D1-C02_Llama7B_deepspeed_zero3_A100.txt", "Spectrum-X_128g_8gps_400Gbps_H100", ("-g", 16)),
        ("G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1_A100.txt", "Spectrum-X_8g_8gps_400Gbps_H100", ()),
    ],
)
def test_their_files_run_unchanged(nadi, shared_data, name, topology, gpus):
    own = shared_data / "simai"
    outcome = nadi.ok("simai", "-w", own / name, "-n", own / topology, "-c", own / "SimAI.conf", *gpus, "--json", "-q")
    assert outcome.document["finish_time_ps"] > 0
    assert outcome.err.count("without effect here:") == 1


def test_the_largest_file_runs_at_bus_bandwidths_and_on_a_fabric_with_the_bubbles_of_its_pipeline(
    nadi, shared_data, tmp_path
):
    files = ("-w", shared_data / "simai" / "workload_analytical.txt")
    bandwidths = named(tmp_path, BUSBW, "busbw.yaml")
    outcome = nadi.ok("simai", *files, "-busbw", bandwidths, "-g", 9216, "--json", "-q")
    layers = [line.split() for line in files[1].read_text().splitlines()[2:]]
    busy_ns = sum(int(each[i]) for each in layers for i in (2, 5, 8))
    assert busy_ns * 1000 < outcome.document["finish_time_ps"]


PUBLISHED = {16: 141.84, 32: 153.68, 64: 160.60, 128: 163.85, 256: 165.72, 512: 166.68}
"""GiB/s of bus bandwidth by MiB: a ring of 8 H100 with 1,440 Gb/s, AS_SEND_LAT = 2 (SimAI, docs/Tutorial.md)."""


def test_published_bus_bandwidths(nadi, shared_data, tmp_path, monkeypatch):
    """1.2 % below: acknowledgements take 0.66 % of a link here and no time there, as ns-3 cuts 0.33 ns to 0, and it
    cuts the 50.27 ns of a packet to 50."""
    monkeypatch.setenv("AS_SEND_LAT", "2")
    lines = [f"embedding_layer -1 556000 ALLREDUCE {size << 20} 1 NONE 0 1 NONE 0 1" for size in PUBLISHED]
    own = shared_data / "simai"
    topology = (own / "Spectrum-X_8g_8gps_400Gbps_H100").read_text().replace("2880Gbps", "1440Gbps")
    nadi.ok(
        *("simai", "-w", workload(tmp_path, *lines, more="all_gpus: 32"), "-n", named(tmp_path, topology, "net")),
        *("-c", own / "SimAI.conf", "--out", tmp_path / "out", "-q"),
    )
    found = busbw_gibps(tmp_path / "out")
    for size, gibps in nonempty(PUBLISHED.items()):
        assert found[size << 20] == pytest.approx(gibps * (1 - 0.012), rel=0.002), size


def test_published_bus_bandwidth_between_hosts(nadi, shared_data, tmp_path, monkeypatch):
    """256 GPUs on rails (Spectrum-X), data parallel: 33.10 GiB/s for 16 MiB and AS_SEND_LAT = 2."""
    monkeypatch.setenv("AS_SEND_LAT", "2")
    files = ("-w", workload(tmp_path, f"embedding_layer -1 556000 NONE 0 1 NONE 0 1 ALLREDUCE {16 << 20} 1"))
    fabric = "rail-optimised:npus=256,rate=400Gbps,delay=500ns,nvlink_rate=2880Gbps"
    nadi.ok("simai", *files, "-n", fabric, "-c", shared_data / "simai" / "SimAI.conf", "--out", tmp_path / "out")
    assert busbw_gibps(tmp_path / "out")[16 << 20] == pytest.approx(33.10, rel=0.01)


def test_an_all_to_all_without_suffix_is_of_tensor_groups_forward_and_of_data_groups_for_weights(tmp_path):
    path = workload(tmp_path, "a -1 1000 ALLTOALL 4096 1000 ALLTOALL 4096 1000 ALLTOALL 4096 0", tp=2)
    traces = trace_set(read_layers(path), 8)
    table = traces.traces[0]
    groups = [table.group_names[row] for row in table.group[table.comm_type == CollectiveCommType.ALL_TO_ALL].tolist()]
    assert groups == ["TP", "TP", "DP"]
    assert traces.families["TP"] == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert traces.families["DP"] == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_only_the_first_checkpoint_counts(tmp_path):
    lines = ["a -1 1000 NONE 0 1000 NONE 0 1000 NONE 0 0"] * 4
    path = workload(tmp_path, *lines, more="checkpoints: 2 0 2 checkpoint_initiates: 2 1 3")
    file, warnings = read_workload(path)
    assert file.lists == {"checkpoints": (0,), "checkpoint_initiates": (1,)}
    again = [name for name in trace_set(file, 8).traces[0].names if "/forward-again/" in name]
    assert len(again) == 1
    assert [warning.removeprefix(f"{path}: ") for warning in warnings] == [
        "checkpoints has 2 layers, of which only the first (0) counts, as in SimAI",
        "checkpoint_initiates has 2 layers, of which only the first (1) counts, as in SimAI",
    ]


def test_the_latency_of_messages_is_in_microseconds_and_one_warning_says_so(tmp_path):
    options = SimaiOptions(workload(tmp_path, "a -1 1 NONE 0 1 NONE 0 1 NONE 0 0"), "switch:npus=8")
    without, given = translated(options, {}), translated(options, {"AS_SEND_LAT": "12"})
    assert (without.sections["network"]["send_latency"], given.sections["network"]["send_latency"]) == ("6us", "12us")
    assert without.warnings == ()
    assert [warning[:31] for warning in given.warnings] == ["AS_SEND_LAT is microseconds, as"]
    with pytest.raises(ConfigError, match=r"^AS_SEND_LAT is 'soon', expected microseconds"):
        translated(options, {"AS_SEND_LAT": "soon"})


def test_the_global_window_is_no_difference_and_other_environment_variables_are_named(tmp_path):
    conf = named(tmp_path, "CC_MODE 12\nENABLE_QCN 0\nGLOBAL_T 0\nL2_CHUNK_SIZE 4000\n", "SimAI.conf")
    options = SimaiOptions(workload(tmp_path, "a -1 1 NONE 0 1 NONE 0 1 NONE 0 0"), "switch:npus=8", conf)
    assert translated(options, {"AS_NVLS_ENABLE": "1", "AS_PXN_ENABLE": "0"}).warnings == (
        f"without effect here: {conf}: L2_CHUNK_SIZE; environment: AS_NVLS_ENABLE",
    )


def test_keys_of_bus_bandwidths_end_in_a_comma(tmp_path):
    found = read_busbw(named(tmp_path, BUSBW, "busbw.yaml"))
    assert found.gibps["TP", "allreduce"] == 300
    assert found.pipeline_bps == round(47.5 * GIB * 8)
    assert found.nanos("TP", CollectiveCommType.ALL_REDUCE, 1 << 30, 8) == pytest.approx(2 * 7 / 8 / 300 * 1e9)
    assert found.nanos("DP_EP", CollectiveCommType.ALL_GATHER, 1 << 30, 4) == pytest.approx(3 / 4 / 45 * 1e9)
    with pytest.raises(ConfigError, match="DP has no allreduce, which the workload uses; expected GB/s"):
        found.nanos("DP", CollectiveCommType.ALL_REDUCE, 64, 2)


def test_a_run_at_bus_bandwidths_takes_their_times(nadi, tmp_path):
    path = workload(tmp_path, f"a -1 5000 ALLREDUCE {1 << 30} 7000 ALLGATHER {1 << 29} 3000 REDUCESCATTER {1 << 28} 0")
    outcome = nadi("simai", "-w", path, "-busbw", named(tmp_path, BUSBW, "b.yaml"), "-g", 16, "--json", "-q")
    blocking_us = round(2 * 7 / 8 / 300 * 1e6) + round(7 / 8 / 2 / 280 * 1e6)
    weights_us = round(1 / 2 / 4 / 380 * 1e6)
    assert outcome.document["finish_time_ps"] == (15 + blocking_us + weights_us) * 10**6


@pytest.mark.parametrize(("pp", "vpp", "ga"), [(2, 1, 4), (4, 1, 8), (2, 2, 4), (4, 2, 8)])
def test_a_pipeline_has_the_bubbles_of_its_stages(nadi, tmp_path, pp, vpp, ga):
    """(pp - 1) / (ga vpp) of the time of a stage, as SimAI's analytical mode has it, and the time of messages."""
    block = ["embedding_layer", *["attention_layer"] * 2 * vpp]
    layers = [f"{name} -1 {100_000 * (name != block[0])} NONE 0 150000 NONE 0 50000 NONE 0 0" for name in block * ga]
    layers = [
        line.replace(" 150000 ", " 0 ").replace(" 50000 ", " 0 ") if "embedding" in line else line for line in layers
    ]
    path = workload(tmp_path, *layers, tp=1, pp=pp, vpp=vpp, ga=ga, more="pp_comm 1000")
    outcome = nadi("simai", "-w", path, "-n", f"switch:npus={pp},rate=1Tbps,delay=1ns", "--json", "-q")
    chunk_us, chunks = 2 * 300, ga * vpp
    stage_us, bubble_us = chunks * chunk_us, (pp - 1) * chunk_us
    hops = 2 * (pp - 1)  # on the critical path, each with SimAI's 6 us
    assert outcome.document["finish_time_ps"] / 1e6 == pytest.approx(stage_us + bubble_us + 6 * hops, rel=0.01)


def test_stages_share_traces(tmp_path):
    block = ["embedding_layer", "attention_layer", "mlp_layer"]
    lines = [f"{name} -1 1000 NONE 0 1000 NONE 0 1000 NONE 0 0" for name in block]
    traces = trace_set(read_layers(workload(tmp_path, *lines, tp=2, pp=4, more="pp_comm 64")), 16)
    assert traces.trace_of_npu.tolist() == [0] * 4 + [1] * 8 + [2] * 4
    assert traces.example_npu.tolist() == [0, 4, 12]

"""Traces that others made: they load, and fit together."""

import tarfile

import numpy as np
import pytest

from nadi.et import read_groups
from nadi.workload import ComputeModel, build_program, load_traces

ROOFLINE = ComputeModel("roofline", peak_flops=312e12, memory_bandwidth_Bps=2.04e12)


@pytest.mark.parametrize("npus", [4, 8, 16])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "reduce_scatter"])
def test_microbenchmarks(chakra_data, kind, npus):
    traces, own = load_traces(chakra_data / "microbenchmarks" / kind / f"{npus}npus_1MB" / kind, npus)
    program = build_program(traces, own, npus)
    assert program.trace_of_npu.tolist() == [0] * npus
    assert program.node_bytes.tolist() == [(npus if kind == "all_gather" else 1) << 20]


@pytest.mark.parametrize("name", ["gpt_fsdp8", "dense_dp2tp2pp2"])
def test_symbolic_tensor_graphs(chakra_data, name):
    folder = chakra_data / name
    traces, own = load_traces(folder / "workload", 8)
    program = build_program(traces, own, 8, read_groups(folder / "workload.json"), ROOFLINE)
    own_nodes = np.diff(program.trace_ptr)[program.trace_of_npu]
    assert own_nodes.tolist() == [len(traces[t]) for t in own]
    assert np.all(program.node_schedule[program.node_kind != 5] == -1)
    sizes = np.diff(program.group_ptr)[program.slot_group]
    assert set(sizes.tolist()) == ({2} if name.startswith("dense") else {8})


def test_a_real_rank(chakra_data, tmp_path):
    with tarfile.open(chakra_data / "resnet50_ddp_rank0of8_et.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (file,) = tmp_path.rglob("*.et")
    traces, own = load_traces(file, 8, strict=False)
    program = build_program(traces, own, 8, compute=ComputeModel("trace"))
    kinds = np.bincount(program.node_kind, minlength=6).tolist()
    assert kinds == [0, 3643 + 14, 0, 0, 0, 7]
    on_cpu = (program.node_kind == 1) & (program.node_lane == 0)
    assert on_cpu.sum() >= 14

"""Traces of other people's runs: what is linked, and what becomes of their collectives."""

import csv
import json
import tarfile

import numpy as np
import pytest

from nadi import et
from nadi.et.pytorch import convert
from tests.nonempty import nonempty

KINDS = et.CollectiveCommType


@pytest.fixture(scope="module")
def megatron(shared_data, tmp_path_factory):
    """Files of Megatron on 8 A100 with tensor parallelism."""
    folder = tmp_path_factory.mktemp("megatron")
    with tarfile.open(shared_data / "pytorch" / "megatron-tp8_host_and_kineto_8ranks.tgz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "megatron-tp8"


@pytest.fixture(scope="module")
def two_ranks(megatron):
    return convert([megatron / f"megatron_{kind}_{rank}.json" for rank in (0, 6) for kind in ("et", "kineto")])


def collectives(table, kind=KINDS.ALL_REDUCE):
    return np.flatnonzero(table.comm_type == kind)


def test_every_kernel_of_megatron_is_linked_without_record_function_ids(two_ranks):
    for rank in nonempty(two_ranks.report["ranks"]):
        assert (rank["kernels"], rank["linked_kernels"], rank["not_linked"]) == (690, 690, [])
        assert (rank["linked_by"], rank["linked_operators"]) == ("order and name", 5422)


def test_all_85_all_reduces_of_megatron_keep_their_bytes_and_groups(two_ranks, shared_data):
    with (shared_data / "pytorch" / "megatron_tp8_groundtruth.csv").open() as file:
        truth = list(csv.DictReader(file))
    for rank, table in nonempty(two_ranks.tables.items()):
        rows = collectives(table)
        assert len(rows) == 85
        of_all = rows[table.group[rows] == 0]
        sizes = [int(row["bytes"]) for row in truth if int(row["rank"]) == rank and int(row["kernel_dur_us"]) > 0]
        assert table.comm_size[of_all].tolist() == sizes
        alone = rows[table.group[rows] > 0]
        assert two_ranks.groups[table.group_names[table.group[alone[0]]]] == (rank,)


def test_compute_of_megatron_takes_what_its_kernels_took(two_ranks, megatron):
    for rank, table in nonempty(two_ranks.tables.items()):
        events = json.loads((megatron / f"megatron_kineto_{rank}.json").read_text())["traceEvents"]
        of_device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
        device = [event for event in of_device if "nccl" not in event["name"]]
        is_device = (table.type == et.NodeType.COMP_NODE) & ~table.is_cpu_op
        assert np.count_nonzero(is_device) == len(device)
        assert table.duration_micros[is_device].sum() == sum(event["dur"] for event in device)


def test_kineto_alone_keeps_the_collectives_of_megatron(two_ranks, megatron):
    alone = convert([megatron / "megatron_kineto_0.json"])
    rows, whole = collectives(alone.tables[0]), collectives(two_ranks.tables[0])
    assert alone.tables[0].comm_size[rows].tolist() == two_ranks.tables[0].comm_size[whole].tolist()
    assert any("without a host trace" in note for note in alone.notes)


def test_resnet_keeps_its_15_all_reduces_and_6_broadcasts(shared_data):
    made = convert([shared_data / "pytorch" / "resnet_2gpu_et_1.1.0.json.gz"])
    table = made.tables[0]
    assert len(collectives(table)) == 15
    assert len(collectives(table, KINDS.BROADCAST)) == 6
    assert table.comm_size[collectives(table)].min() > 0
    assert any("without a Kineto trace" in note for note in made.notes)
    assert made.report["missing_ranks"] == [1]


def test_a_host_trace_of_one_iteration_is_found_among_many(shared_data):
    made = convert([shared_data / "pytorch" / f"linear_{kind}.json.gz" for kind in ("et", "kineto")])
    (rank,) = made.report["ranks"]
    assert (rank["places_that_fit"], rank["linked_operators"], rank["not_linked"]) == (39, 928, [])
    assert rank["device_operations"] == rank["linked_device_operations"] == 261


def test_gloo_host_traces_of_an_archive_with_macos_files(shared_data, tmp_path):
    with tarfile.open(shared_data / "pytorch" / "gloo_host_1.0.2.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    made = convert([tmp_path])
    table = made.tables[0]
    assert table.version == "1.0.2-chakra.0.0.4"
    assert table.comm_size[collectives(table, KINDS.ALL_GATHER)].tolist() == [4] * 10

"""What `nccl` takes, over kind, size, hosts and generation, against NCCL's formulas worked out anew (nccl_naive)."""

import functools

import pytest

from nadi import topologies
from nadi.workload.collectives.nccl.decision import NcclParameters, host_of, nccl_decision
from nadi.workload.collectives.nccl.tuning import model_ps
from nadi.workload.collectives.trees import IF_ANY
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty
from tests.workload.nccl_naive import GPUS, Group

NVLINK_GBPS = {"v100": 1200, "a100": 2400, "h100": 3600, "b200": 7200}
NIC_GBPS = {"v100": 100, "a100": 200, "h100": 400, "b200": 400}
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
SIZES = [64 << e for e in range(0, 28, 3)] + [100, 3_000_000, 700_000_000]
HOSTS = [(1, 8, 8), (1, 4, 4), (1, 2, 2), (2, 8, 8), (3, 8, 8), (4, 8, 8), (16, 8, 8), (2, 4, 4), (8, 2, 2), (4, 1, 1)]
HOSTS += [(16, 1, 1), *((nodes, 8, nics) for nodes in (2, 5) for nics in (1, 2, 4))]  # hosts whose GPUs share NICs, too


@functools.cache
def shape(gpu, nodes, gpus, nics):
    graph = topologies.build(
        f"rail-optimised:npus={nodes * gpus},gpus_per_host={gpus},nics_per_host={nics},"
        f"rate={NIC_GBPS[gpu]}Gbps,nvlink_rate={NVLINK_GBPS[gpu]}Gbps"
    )
    return shape_of(graph, range(graph.npus), trees=f"{IF_ANY}hosts")


@pytest.mark.parametrize("gpu", sorted(GPUS))
@pytest.mark.parametrize(("nodes", "gpus", "nics"), HOSTS)
def test_takes_what_nccl_takes(gpu, nodes, gpus, nics):
    """60 choices each, 4,080 in all; and the times by which they are taken are the same."""
    compare(Group(gpu, nodes, gpus, NIC_GBPS[gpu] / 8, nics), (gpu, nodes, gpus, nics), NcclParameters(generation=gpu))


def compare(group, hosts, asked):
    """Compare all times and choices with those of the formulas; return the algorithm of each all-reduce, by size."""
    members = shape(*hosts)
    host = host_of(members, asked)
    for kind in KINDS:
        for size in SIZES:
            expected_us = group.times(kind, size)
            for (algorithm, protocol), time_us in nonempty(expected_us.items()):
                found_us = model_ps(kind, host, size, algorithm, protocol) / 1e6
                assert found_us == pytest.approx(time_us, rel=1e-6), (kind, size, algorithm, protocol)
            least = min(expected_us, key=expected_us.get)
            assert nccl_decision(kind, members, size, asked)[:2] == least, (kind, size)
    return [nccl_decision("all-reduce", members, size, asked).algorithm for size in sorted(SIZES)]


def test_slow_nics_behind_intel_cpus_take_the_tree(monkeypatch):
    """Through an Intel CPU 24 GB/s of PCIe count as 20, below the 24 of a channel at a NIC's rate (search.cc)."""
    hosts, near = ("a100", 2, 8, 2), NcclParameters(generation="a100", cpu="intel")
    monkeypatch.setitem(GPUS, "a100", GPUS["a100"] | {"cpu": "intel"})
    assert compare(Group(*hosts[:3], 25, 2), hosts, near)[-1] == "ring"
    monkeypatch.setitem(GPUS, "a100", GPUS["a100"] | {"pcie": 24 / 1.2})
    assert compare(Group(*hosts[:3], 25, 2), hosts, near._replace(nic_path="cpu"))[-1] == "tree"
    amd = near._replace(cpu="amd")
    assert host_of(shape(*hosts), amd) == host_of(shape(*hosts), amd._replace(nic_path="cpu"))


def test_all_that_nccl_has_is_taken_somewhere():
    taken = {
        nccl_decision(kind, shape(gpu, *hosts), size, NcclParameters(generation=gpu))[:2]
        for gpu in GPUS
        for hosts in HOSTS
        for kind in KINDS
        for size in SIZES
    }
    assert {algorithm for algorithm, _ in taken} == {"ring", "tree", "nvls", "nvls-tree", "pat"}
    assert {protocol for _, protocol in taken} == {"ll", "ll128", "simple"}

"""Channels, protocol and rate of NCCL's sends and receives, worked out anew, and all-to-alls that are made of them.

The naive rules are those of NCCL 2.30's src/enqueue.cc and src/graph/paths.cc, line by line.
"""

import numpy as np
import pytest

from nadi import topologies
from nadi.pdes import Settings, build_world, run
from nadi.workload import WorkloadError, collective_program, uneven_program
from nadi.workload.collectives.nccl.decision import NcclParameters, host_of
from nadi.workload.collectives.nccl.point_to_point import communicator, message
from nadi.workload.collectives.schedules.packed import ScheduleSet
from nadi.workload.collectives.uneven import units
from nadi.workload.program.choosing import CollectiveSettings
from tests.samples import sampled
from tests.workload.nccl_network import hosts
from tests.workload.test_uneven import check_uneven

KIB, MIB = 1 << 10, 1 << 20
G = 10**9
NVLINK_BPS = {"v100": 1200 * G, "a100": 2400 * G, "h100": 3600 * G, "b200": 7200 * G}
LINKS = {"v100": 6, "a100": 12, "h100": 18, "b200": 18}
NIC_BPS = {"v100": 100 * G, "a100": 200 * G, "h100": 400 * G, "b200": 400 * G}
NET_GBPS = {"v100": 12, "a100": 24, "h100": 48, "b200": 48}
HALF_BLOCK_GBPS = {"v100": 10.0, "a100": 10.0, "h100": 18.35, "b200": 20.0}


def naive_channels(gpu, used, ranks, several, local, size):
    """src/enqueue.cc, addP2pToPlan, with integers as there."""
    p2p_channels, peers = 1, []
    while p2p_channels < used:
        p2p_channels *= 2
    if local:
        peers.append(2 * LINKS[gpu])
    if several:
        peers.append((NET_GBPS[gpu] + 13) // 14)
    most = 1
    while most < min(peers):
        most *= 2
    most = min(most, p2p_channels)
    step = 128 * KIB if several else 512 * KIB
    small, large = (step // 2, step) if several else (step // 8, step * 32)
    shared = p2p_channels
    if gpu == "a100" and not several and local:
        shared, large = 8, step  # as NVIDIA's measurements of NCCL 2.27.3 show
    least = most
    while least * ranks > shared and least > 1:
        least //= 2
    channels = min(least, -(-size // small))
    part = max(small, -(-size // channels))
    while part > large and channels <= most // 2:
        channels *= 2
        part = -(-size // channels)
    return channels


def group_of(gpu, *counts):
    shape = hosts(*counts, inside_bps=NVLINK_BPS[gpu], outside_bps=NIC_BPS[gpu])
    return communicator(host_of(shape, NcclParameters(generation=gpu)), is_paced=True), shape


@sampled(
    {
        "size": [1, KIB, 16 * KIB, 16 * KIB + 1, 64 * KIB, 100_000, MIB, 32 * MIB, 300 * MIB, 1 << 31],
        "counts": [(2,), (3,), (4,), (8,), (8, 8), (1, 1), (8,) * 16],
        "gpu": LINKS,
    }
)
def test_channels_and_protocol_are_those_of_nccls_rules(gpu, counts, size):
    group, _ = group_of(gpu, *counts)
    several, local = len(counts) > 1, max(counts) > 1
    expected = naive_channels(gpu, group.host.plan.used, sum(counts), several, local, size)
    for far in {several, not local}:
        found = message(group, size, between_hosts=far)
        assert found.channels == expected
        assert found.protocol == ("ll" if not far and size <= expected * 16 * KIB else "simple")
        assert found.gb_per_s == pytest.approx(expected * HALF_BLOCK_GBPS[gpu])


def test_peers_on_a100_share_eight_channels():
    """With 8, 4 and 2 GPUs a message of 512 KiB has one, two and four channels; a part of 512 KiB is the largest."""
    for members, few, more in ((8, 1, 2), (4, 2, 2), (2, 4, 4)):
        group, _ = group_of("a100", members)
        assert [message(group, size, between_hosts=False).channels for size in (512 * KIB, MIB)] == [few, more]


def test_eight_b200_in_a_host():
    """By hand: 1 KiB by LL; from 64 KiB on a channel for each 64 KiB, four at most up to 64 MiB, 32 at the end."""
    group, shape = group_of("b200", 8)
    found = [message(group, size, between_hosts=False) for size in (KIB, 128 * KIB, MIB, 64 * MIB, 65 * MIB, 1 << 30)]
    assert [one.channels for one in found] == [1, 2, 4, 4, 8, 32]
    assert [one.protocol for one in found] == ["ll"] + ["simple"] * 5
    assert found[0].base_ps + found[0].hop_ps == pytest.approx((8.8 + 0.36) * 1e6, abs=2)
    drained_us = (1.44 / (0.82 * 720) - 1 / 80) * MIB / 1e3  # negative: its channels are slower than NVLink
    assert drained_us < 0
    assert found[2].base_ps + found[2].hop_ps == pytest.approx((13.8 + 0.36) * 1e6, abs=2)
    seven = message(group, MIB, between_hosts=False, peers=7)
    waits_us = 7 * MIB * 1.44 / (0.82 * 720) / 1e3 - MIB / 80 / 1e3
    assert seven.base_ps + seven.hop_ps == pytest.approx((13.8 + 7 * 0.36 + waits_us) * 1e6, abs=2)
    assert found[2].shares(shape, between_hosts=False) == pytest.approx(720 / 80)
    assert found[-1].shares(shape, between_hosts=False) == pytest.approx(720 / 640)


def settings(**keys):
    return CollectiveSettings({key.replace("_", "-"): value for key, value in keys.items()})


def test_uneven_all_to_alls_are_nccls_where_even_ones_are():
    assert settings(all_to_all="nccl:pxn=false").algorithm_of("all-to-all-v") == "nccl:pxn=false"
    assert settings(all_to_all="pairwise").algorithm_of("all-to-all-v") == "direct"
    assert settings().algorithm_of("all-to-all-v") == "direct"
    both = CollectiveSettings({"all-to-all": "nccl", "all-to-all-v": "pairwise"})
    assert both.algorithm_of("all-to-all-v") == "pairwise"
    with pytest.raises(
        WorkloadError, match="'ring' for all-to-all-v: expected one of direct, pairwise, hierarchical, nccl"
    ):
        CollectiveSettings({"all-to-all-v": "ring"})
    with pytest.raises(WorkloadError, match="is no parameter"):
        CollectiveSettings({"all-to-all-v": "nccl:rings=2"})


def took_us(graph, program, settings=Settings()):  # noqa: B008 - frozen
    return run(build_world(graph, program, settings)).finish_time_ps / 1e6


@sampled(
    {
        "pxn": ["true", "false"],
        "each": [100, 3 * KIB, 16 * KIB, 64 * KIB + 4, MIB],
        "fabric": ["dgx-a100:npus=8", "dgx-h100:npus=16", "rail-optimised:npus=6,gpus_per_host=3", "switch:npus=3"],
    }
)
def test_uneven_with_equal_sizes_takes_as_long_as_even(fabric, each, pxn):
    graph = topologies.build(fabric)
    n, algorithm = graph.npus, f"nccl:pxn={pxn}"
    even = collective_program("all-to-all", n, each * n, algorithm, graph)
    uneven = uneven_program(np.full((n, n), each), algorithm, graph)
    assert took_us(graph, uneven) == took_us(graph, even)


def test_a_large_group_of_unlike_sizes_by_relays_has_what_it_is_promised():
    """Three hosts of unlike sizes and rails, whose members are not numbered in a row; some send nothing."""
    rng = np.random.default_rng(7)
    for counts in ((3, 3), (4, 2, 3), (1, 5)):
        shape = hosts(*counts)
        matrix = rng.integers(0, 4, (shape.members, shape.members)) * 20 * KIB
        matrix[1] = matrix[:, 2] = 0
        order = rng.permutation(shape.members)
        mixed = shape._replace(
            host=tuple(np.array(shape.host)[order].tolist()), place=tuple(np.array(shape.place)[order].tolist())
        )
        first = {host: number for number, host in enumerate(dict.fromkeys(mixed.host))}
        mixed = mixed._replace(host=tuple(first[host] for host in mixed.host))
        for stands in (shape, mixed):
            schedules = ScheduleSet()
            number = schedules.add_uneven(matrix, "nccl", stands)
            for seed in range(3):
                check_uneven(schedules.pack(), number, units(matrix).sent, seed)


def test_small_all_to_alls_of_split_sizes_cost_a_launch_and_a_hop():
    """DLRM on 8 GPUs, sizes made up: 1.5 to 52 KB that tables on some ranks have for all, and nothing on others."""
    rng = np.random.default_rng(1)
    graph = topologies.build("dgx-a100:npus=8")
    tables = np.array([4, 3, 3, 3, 4, 3, 3, 3])  # of each rank; each has 16 samples of 32 floats for every rank
    pooled = np.repeat(tables * 16 * 32 * 4, 8).reshape(8, 8)
    lookups = rng.integers(10, 400, (8, 8)) * 16
    for matrix in (pooled, lookups, np.diag(np.arange(8)) + 8 * np.eye(8, k=1, dtype=int)):
        assert took_us(graph, uneven_program(matrix, "nccl", graph)) >= 6.6 + 0.6


@pytest.mark.parametrize("counts", [(8,), (4,), (8, 8), (1, 1, 1, 1)])
@pytest.mark.parametrize("gpu", LINKS)
def test_messages_of_all_sizes_agree_about_the_rate_of_a_connection(gpu, counts):
    """Else a group could not run all-to-alls of two sizes."""
    group, shape = group_of(gpu, *counts)
    rates = {}
    for between_hosts in {False, len(counts) > 1}:
        for size in range(16 * KIB, 2 * MIB, 16 * KIB):
            transport = message(group, size, between_hosts=between_hosts)
            rate = transport.shares(shape, between_hosts=between_hosts)
            rates.setdefault(transport.connection, set()).add(round(rate, 9))
    assert all(len(found) == 1 for found in rates.values()), rates

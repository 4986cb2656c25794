"""Factors of a site: they scale the cited times of NCCL's steps by what closed forms say, and change no choice."""

import pytest

from nadi import topologies
from nadi.workload import WorkloadError
from nadi.workload.collectives import choose
from nadi.workload.collectives.nccl.generations import generations
from nadi.workload.collectives.nccl.site import CITED, SiteFactors, at_site
from nadi.workload.shape import shape_of
from tests.nonempty import nonempty

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KERNEL = generations()["h100"].kernel
NAMES = SiteFactors._fields


def time_us(kind, size_bytes, npus=8, **factors):
    chosen = choose(kind, "nccl:" + ",".join(f"{name}_factor={value}" for name, value in factors.items()))
    shape = shape_of(topologies.build(f"dgx-h100:npus={npus}"), range(npus), trees=chosen.trees)
    shape = shape._replace(inside_bps=round(0.8 * shape.inside_bps), line_bps=shape.lines_bps)  # flits of NVLink
    return chosen.closed_form(kind, npus, size_bytes, 0.0, 0.0, shape) / 1e6


def variant(kind, size_bytes, npus, text):
    chosen = choose(kind, text)
    shape = shape_of(topologies.build(f"dgx-h100:npus={npus}"), range(npus), trees=chosen.trees)
    return chosen.describe(kind, shape, size_bytes)


def test_one_is_the_cited_value():
    for kind, npus in nonempty([("all-reduce", 8), ("all-gather", 16), ("all-to-all", 8)]):
        for size in (KIB, MIB, GIB):
            assert time_us(kind, size, npus, **CITED._asdict()) == time_us(kind, size, npus)


def test_launch_and_hop_of_a_small_ring():
    """A ring with LL takes the launch and 14 steps, whose latency of the path is in NCCL's figure."""
    plain = time_us("all-reduce", KIB)
    assert time_us("all-reduce", KIB, launch=2.0) - plain == pytest.approx(KERNEL.launch_us[0], rel=1e-3)
    assert time_us("all-reduce", KIB, hop=2.0) - plain == pytest.approx(14 * KERNEL.hop_us[0], rel=1e-3)


def test_rates_of_large_buffers():
    """A ring of 1 GiB takes its time at the planned rate of NVLink, and an all-to-all that of its messages."""
    for kind in nonempty(["all-gather", "reduce-scatter", "all-to-all"]):
        slower = time_us(kind, 4 * GIB, nvlink=0.8) / time_us(kind, 4 * GIB)
        assert slower == pytest.approx(1.25, rel=0.02), kind


def test_block_of_a_ring_over_hosts():
    """Blocks limit rings over hosts with two channels of a NIC of 400 Gb/s: half their rate is twice the time."""
    slower = time_us("all-gather", 4 * GIB, 16, block=0.5) / time_us("all-gather", 4 * GIB, 16)
    assert slower == pytest.approx(2.0, rel=0.03)


def test_steps_between_hosts():
    """Each of the 15 steps of an all-gather on two hosts takes the thread's message, or a hop between hosts."""
    plain = time_us("all-gather", KIB, 16)
    more = time_us("all-gather", KIB, 16, nic=2.0) - plain
    # at 1 KiB one channel is used: a message of 1.9 us a step, and NCCL's hop with LL for the one between hosts
    assert more == pytest.approx(14 * 1.9 + 2.7, rel=0.02)
    assert time_us("all-gather", KIB, 8, nic=2.0) == time_us("all-gather", KIB, 8)


def test_nccl_does_not_know_the_site():
    """Choices of algorithm, protocol and channels are those of the cited constants."""
    for name in nonempty(NAMES):
        for kind in ("all-reduce", "all-gather", "all-to-all"):
            for npus in (8, 32):
                for size in (KIB, 64 * KIB, MIB, 32 * MIB, GIB):
                    assert variant(kind, size, npus, f"nccl:{name}_factor=0.5") == variant(kind, size, npus, "nccl")


def test_every_factor_changes_some_constant():
    for name in nonempty(set(NAMES) - {"nic"}):  # that one is no constant of kernels
        assert at_site(generations()["b200"], CITED._replace(**{name: 1.5})) != generations()["b200"], name


@pytest.mark.parametrize("text", ["0.1", "5.1", "nan", "inf", "fast", ""])
def test_wrong_factors_are_refused(text):
    with pytest.raises(WorkloadError, match=r"nic_factor is '.*', expected a number from 0.2 to 5.0"):
        choose("all-reduce", f"nccl:nic_factor={text}")

"""The study's uncontended copies are idle: what shares links on the fabric shares none there."""

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def study():
    """A module by its name, as compiled hooks are kept with it."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield importlib.import_module("idle_engine_study")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_a_copy_is_what_is_played(study, size):
    turn = study.measured("leaf-spine:leaves=4,spines=4,hosts_per_leaf=4", "all-to-all", "direct", size, 1)
    assert turn.above_ps == 0
    assert turn.fabric_ps > 0


def test_a_copy_of_hosts_has_their_ports(study):
    spec = "rail-optimised:npus=8,gpus_per_host=4,hosts_per_rail_leaf=1,spines=1,nvlink_rate=2400Gbps"
    assert study.measured(spec, "all-reduce", "nccl", 1 << 14, 1).above_ps == 0


def test_fabrics_whose_npus_pass_packets_on_have_no_copy(study):
    with pytest.raises(study.NoCopyError):
        study.measured("torus:sizes=3x3", "all-to-all", "direct", 1000, 1)

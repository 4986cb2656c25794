"""A recorded step of Megatron on 8 A100, simulated: what the documentation says of it."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measured_step.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("measured_step", SCRIPT)
    module = sys.modules["measured_step"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["measured_step"]


@pytest.mark.slow
def test_span_and_all_reduces_of_megatron_are_within_five_percent(script, shared_data, tmp_path):
    archive = shared_data / "pytorch" / "megatron-tp8_host_and_kineto_8ranks.tgz"
    found = script.run(archive, "dgx-a100:npus=8", tmp_path)
    assert len(found.spans_us) == 8
    for measured, simulated in found.spans_us.values():
        assert simulated == pytest.approx(measured, rel=0.05)
    count, measured, simulated = found.collectives_us["ncclDevKernel_AllReduce_Sum_f16_RING_LL"]
    assert count == 81
    assert simulated == pytest.approx(measured, rel=0.05)
    late = sorted(found.started_us)
    assert -1000 < late[len(late) // 20] < late[-len(late) // 20] < 1000

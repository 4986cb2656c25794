"""scripts/profile_gpu.py on this machine's CPU, where there is PyTorch."""

import importlib.util
from pathlib import Path

import pytest

from nadi.workload.compute import ComputeTimes, find_gpu, read_table
from nadi.workload.compute.operators import (
    EARLY_PRODUCT,
    EXPERT_CAST,
    KINDS,
    LAUNCHES,
    OLD_ATTENTION,
    WINDOW_ATTENTION,
)

torch = pytest.importorskip("torch", reason="no PyTorch")
SCRIPT = Path(__file__).parents[2] / "scripts" / "profile_gpu.py"


@pytest.fixture
def profile_gpu():
    spec = importlib.util.spec_from_file_location("profile_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    spec.loader.exec_module(module)
    yield module
    torch.set_num_threads(threads)


def test_every_kind_is_measured_into_a_table_that_is_read(profile_gpu, tmp_path, capsys):
    out = tmp_path / "cpu.csv"
    assert profile_gpu.main(["-o", str(out), "--device", "cpu", "--tiny", "--gpu", "a100"]) == 0
    rows = read_table(out)
    on_a_gpu_only = {"grouped-gemm"}
    of_old_software = {kind for kind in KINDS if kind.startswith((*OLD_ATTENTION, EARLY_PRODUCT))}  # not in today's
    # In Transformer Engine
    not_in_pytorch = {"fused-expert-gemm", EXPERT_CAST, WINDOW_ATTENTION, f"{WINDOW_ATTENTION}-backward"}
    not_on_a_gpu = {LAUNCHES}
    others = on_a_gpu_only | of_old_software | not_in_pytorch | not_on_a_gpu
    assert {row.operator.kind for row in rows} | others == set(KINDS)
    times = ComputeTimes(find_gpu("a100"), rows)
    assert all(times.find(row.operator) == (row.time_ps, "measured") for row in rows)
    assert "device: " in out.read_text().splitlines()[0]
    assert f"{len(rows)} rows of a100" in capsys.readouterr().out


def test_what_was_measured_before_the_time_is_over_is_kept(profile_gpu, tmp_path):
    out = tmp_path / "cpu.csv"
    profile_gpu.main(["-o", str(out), "--device", "cpu", "--tiny", "--seconds", "0", "--families", "gemm,loss"])
    said = out.read_text()
    assert "out of time" in said
    assert read_table(out) == []


def test_an_unknown_family_is_refused(profile_gpu, tmp_path, capsys):
    with pytest.raises(SystemExit):
        profile_gpu.main(["-o", str(tmp_path / "t.csv"), "--families", "gem"])
    assert "family 'gem'; expected some of gemm, attention" in capsys.readouterr().err

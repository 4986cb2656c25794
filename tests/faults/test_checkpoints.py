"""Runs that save their state, are ended or killed, and continue; checkpoints of other runs are refused."""

import json
import os
import shutil
import signal

import pytest

from nadi import et
from nadi.cli.main import main
from nadi.inputs.arrays import read_arrays, write_arrays
from nadi.launching.checkpoints import newest
from tests.faults.fuzz_checkpoints import BASES, KINDS, examples
from tests.features.restarting import after

ENDS_S = 60
EVERY = ("--set", "engine.checkpoint=1h")


@pytest.fixture(scope="module")
def a_second(run_file):
    """A run of a second or more, which looks at requests a few times a second."""
    return run_file(3 << 30)


@pytest.fixture(scope="module")
def digest(a_second, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert main(["run", str(a_second), "--quiet", "--out", str(folder)]) == 0
    return digest_in(folder)


def digest_in(folder):
    return json.loads((folder / "summary.json").read_text())["digest"]


def numbers(folder):
    return sorted(path.name for path in (folder / "checkpoints").glob("[0-9]*"))


@pytest.mark.slow
def test_requested_checkpoints_and_one_during_which_the_run_is_killed(start, a_second, digest, tmp_path):
    out = tmp_path / "out"
    run = start("serial", a_second, "--out", out, *EVERY, fault="slow_saving@everyone")
    run.until("simulated")
    for number in range(1, 4):
        run.process.send_signal(signal.SIGUSR1)
        run.until(f"checkpoint {number}: ")
    assert numbers(out) == ["000002", "000003"]
    run.process.send_signal(signal.SIGUSR1)
    run.until("lingering")
    assert (out / "checkpoints" / ".writing").exists()
    run.process.kill()
    run.process.wait()
    assert newest(out).name == "000003"
    resumed = start("serial", a_second, "--resume", out, *EVERY)
    resumed.until("simulated")
    resumed.process.send_signal(signal.SIGUSR1)
    resumed.until("checkpoint ")
    assert resumed.ended(within_s=ENDS_S) == 0, resumed.err
    assert digest_in(out) == digest
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("threads", "serial"),
        pytest.param("serial", "processes", marks=pytest.mark.full),
        ("processes", "ranks"),
        pytest.param("ranks of two nodes", "threads", marks=pytest.mark.full),
    ],
)
def test_asked_to_end_and_continued(start, a_second, digest, tmp_path, first, second):
    run = start(first, a_second, "--out", tmp_path / "out", *EVERY)
    run.until("simulated")
    if first.startswith("ranks"):
        for rank in range(2):
            os.kill(run.pid_of_rank(rank), signal.SIGTERM)
    else:
        run.process.send_signal(signal.SIGTERM)
    assert run.ended(within_s=ENDS_S) == 143
    (line,) = run.told()
    assert line == "nadi: error: ended as requested; --resume continues from the checkpoint"
    assert numbers(tmp_path / "out") == ["000001"]
    resumed = start(second, a_second, "--resume", tmp_path / "out")
    assert resumed.ended(within_s=ENDS_S) == 0, resumed.err
    assert digest_in(tmp_path / "out") == digest


def test_a_request_to_end_while_a_checkpoint_is_written(start, a_second, tmp_path):
    run = start("serial", a_second, "--out", tmp_path / "out", *EVERY, fault="ended_while_saving@everyone")
    run.until("simulated")
    run.process.send_signal(signal.SIGUSR1)
    assert run.ended(within_s=ENDS_S) == 143
    assert numbers(tmp_path / "out") == ["000001", "000002"]


@pytest.fixture(scope="module")
def stopped(a_second, tmp_path_factory):
    """A folder with a run file and a run that was asked to end."""
    folder = tmp_path_factory.mktemp("stopped")
    for path in a_second.parent.iterdir():
        shutil.copy(path, folder)
    with after(1):
        assert main(["run", str(folder / "run.toml"), "--quiet", "--out", str(folder / "out"), *EVERY]) == 143
    return folder


@pytest.fixture
def copied(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "copy")
    return tmp_path / "copy"


def refused(capsys, folder, *more):
    capsys.readouterr()
    assert main(["run", str(folder / "run.toml"), "--quiet", "--resume", str(folder / "out"), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_damaged(copied, capsys):
    part = newest(copied / "out") / "lp-0.nadi"
    content = part.read_bytes()
    wrong = f"{part}: found other size or checksum than run.nadi names: it is truncated, or of another checkpoint"
    for damaged in (content[:-1], content[:5000], b""):
        part.write_bytes(damaged)
        assert wrong in refused(capsys, copied)
    part.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    assert f"{part}: its content does not match its checksum; it is truncated or was altered" in refused(capsys, copied)
    part.unlink()
    assert "No such file" in refused(capsys, copied)


def test_of_another_run(copied, capsys):
    other_mtu = refused(capsys, copied, "--set", "network.mtu=1KiB")
    assert "[network] mtu is '1KiB', and '4KiB' in the checkpoint" in other_mtu
    for trace in copied.glob("trace.*.et"):
        et.write_trace(trace, et.metadata(), [et.coll_node(1, "grads", et.CollectiveCommType.ALL_TO_ALL, 1 << 30)])
    assert "[workload] traces = trace: its content differs" in refused(capsys, copied)


def test_of_other_sources(copied, capsys):
    part = newest(copied / "out") / "run.nadi"
    values, arrays = read_arrays(part)
    values["identity"]["sources"] = "other"
    part.unlink()
    write_arrays(part, values, arrays)
    assert "--resume: sources differ from those of the checkpoint; expected the same" in refused(capsys, copied)


def test_without_checkpoint(copied, capsys):
    shutil.rmtree(copied / "out" / "checkpoints")
    assert "found no checkpoint" in refused(capsys, copied)
    assert main(["run", str(copied / "run.toml"), "--quiet", *EVERY]) == 2
    assert "[engine] checkpoint: found no folder of results" in capsys.readouterr().err


@pytest.mark.slow
def test_exchanged_truncated_and_forged(tmp_path):
    """A sample of `make fuzz-checkpoints`."""
    seen = [(kind, made, wrong) for _, kind, made, wrong in examples(range(len(BASES) * len(KINDS)), tmp_path)]
    assert {kind for kind, _, _ in seen} == {*KINDS}
    assert [f"{made}: {wrong}" for _, made, wrong in seen if wrong] == []

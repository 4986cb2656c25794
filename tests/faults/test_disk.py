"""A disk that is full: one line, exit code 1, all ranks end, and nothing has its final name."""

import os
import shutil
import subprocess

import pytest

from nadi.cli.main import main

ENDS_S = 20


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of two pages."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system for tests needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], capture_output=True, timeout=10)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=10)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["serial", "ranks"])
def test_no_room_on_the_disk(start, short, tiny_disk, way):
    earlier = tiny_disk / "earlier"
    earlier.touch()
    run = start(way, short, "--out", tiny_disk / "out")
    assert run.ended(within_s=ENDS_S) == 1
    (line,) = run.told()
    assert line.startswith(f"nadi: error: {tiny_disk}/out: ")
    assert "No space left on device" in line
    assert line.endswith("; results are not written")
    assert [*tiny_disk.iterdir()] == [earlier]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["processes", "ranks of two nodes"])
def test_files_may_not_be_so_long(start, short, tmp_path, way):
    run = start(way, short, "--out", tmp_path / "out", fault="no_room@everyone")
    assert run.ended(within_s=ENDS_S) == 1
    (line,) = run.told()
    assert "File too large" in line
    assert not (tmp_path / "out").exists()


WRITERS = {
    "table": ["collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "1MiB", "-o", "{disk}/c.html"],
    "script": ["slurm", "{run}", "--nodes", "1", "-o", "{disk}/job.sbatch"],
    "fabric": ["topology", "build", "fat-tree:k=8", "-o", "{disk}/net.toml"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_room_for_what_other_commands_write(tiny_disk, short, name, capsys):
    """Each has an error of its own for a name that cannot be written, with exit code 2."""
    (tiny_disk / "full").write_bytes(bytes(8000))
    words = [word.format(disk=tiny_disk, run=short) for word in WRITERS[name]]
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{words[-1]}: No space left on device" in line
    assert [path.name for path in tiny_disk.iterdir()] == ["full"]
    assert main(["topology", "build", "ring:npus=4", "-o", str(tiny_disk / "no folder" / "net.toml")]) == 2

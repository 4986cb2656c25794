"""A disk that is full: one line, exit code 1, all ranks end, and nothing has its final name."""

import os
import shutil
import subprocess
import sys

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


def test_no_room_for_a_script(short, tiny_disk):
    (tiny_disk / "full").write_bytes(bytes(8192))
    command = [sys.executable, "-m", "nadi", "slurm", short, "--nodes", "1", "-o", tiny_disk / "job.sbatch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"{tiny_disk}/job.sbatch: No space left on device" in done.stderr
    assert [path.name for path in tiny_disk.iterdir()] == ["full"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["processes", "ranks of two nodes"])
def test_files_may_not_be_so_long(start, short, tmp_path, way):
    run = start(way, short, "--out", tmp_path / "out", fault="no_room@everyone")
    assert run.ended(within_s=ENDS_S) == 1
    (line,) = run.told()
    assert "File too large" in line
    assert not (tmp_path / "out").exists()


def test_no_folder_can_be_made(start, short, tmp_path):
    (tmp_path / "file").touch()
    run = start("ranks", short, "--out", tmp_path / "file" / "out")
    assert run.ended(within_s=ENDS_S) == 2
    (line,) = run.told()
    assert line.endswith("/file/out: File exists; expected a folder to write results to")


WRITERS = {
    "table": ["collective", "all-reduce", "-t", "ring:npus=4", "--sizes", "1MiB", "-o", "{disk}/c.html"],
    "fabric": ["topology", "build", "fat-tree:k=8", "-o", "{disk}/net.toml"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_room_for_what_other_commands_write(tiny_disk, name, capsys):
    """Each has an error of its own for a name that cannot be written, with exit code 2."""
    (tiny_disk / "full").write_bytes(bytes(8000))
    words = [word.format(disk=tiny_disk) for word in WRITERS[name]]
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert main(["topology", "build", "ring:npus=4", "-o", str(tiny_disk / "no folder" / "net.toml")]) == 2

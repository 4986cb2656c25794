"""MPICH's files of shared memory, which stay where ranks are killed: tests that kill remove them."""

from contextlib import suppress
from pathlib import Path

PREFIX = "mpich_shm_"


def mapped(pids):
    """Files that processes have mapped."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {
                Path(line.split()[-1]) for line in lines if line.split()[-1].rpartition("/")[2].startswith(PREFIX)
            }
    return found


def remove(files):
    """What is left of them."""
    for file in files:
        file.unlink(missing_ok=True)

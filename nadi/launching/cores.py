"""Cores of this machine that a run may use, and control groups, which limit them and memory."""

import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, by its affinity and control groups.

    Args:
        root: Folder of the file system, which has proc and sys.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    # threads of a core name the same list; a processor without one counts as a core
    cores = len({next(iter(lines(path)), str(path)) for path in siblings})
    return max(1, math.floor(min([cores, *_shares_of_groups(root)])))


def idle_cores() -> int:
    """Return the number of physical cores, of those that this process may use, that others leave idle; at least 1."""
    # Workers wait for each other in every window: one whose core another process uses makes all wait for milliseconds.
    # This process has just begun, and counts for a part of a processor in the mean of the last minute.
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return max(1, min(usable_cores(), math.floor((os.cpu_count() or 1) - busy + 0.5)))


def _shares_of_groups(root: Path) -> Iterator[float]:
    """Yield the processors that each control group of this process may keep busy, read below `root`."""
    for base, inside, is_v1 in folders_of_groups(root, "cpu"):
        for folder in (base / inside, *(base / above for above in inside.parents)):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
            limits = [word for name in names for line in lines(folder / name) for word in line.split()]
            # "max" and -1 stand for no limit
            if len(limits) == 2 and all(word.isdecimal() and int(word) for word in limits):
                yield int(limits[0]) / int(limits[1])


def folders_of_groups(root: Path, controller: str) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the folder of a controller, that of this process's group in it, and whether it is of version 1.

    Args:
        root: Folder of the file system.
        controller: Name of the controller, "cpu" or "memory".
    """
    for line in lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        is_v1 = controller in controllers.split(",")
        if controllers and not is_v1:  # version 2 of control groups lists no controllers
            continue
        yield root / (f"sys/fs/cgroup/{controller}" if is_v1 else "sys/fs/cgroup"), Path(path.strip("/")), is_v1


def lines(path: Path) -> list[str]:
    """Return the lines of a text file; none if it cannot be read.

    Args:
        path: The file.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

"""Cores of this machine that a run may use, and control groups, which limit them and memory."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOOK_S = 0.2  # for how long the use of processors is observed, in seconds


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of physical cores that this process may use, by its affinity and control groups.

    Args:
        root: Folder of the file system, which has proc and sys.
    """
    siblings = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in _usable_processors())
    # threads of a core name the same list; a processor without one counts as a core
    cores = len({next(iter(lines(path)), str(path)) for path in siblings})
    return max(1, math.floor(min([cores, *_shares_of_groups(root)])))


def idle_cores(root: Path = Path("/")) -> int:
    """Return the number of physical cores, of those that this process may use, that others leave idle; at least 1.

    Args:
        root: Folder of the file system, which has proc and sys.
    """
    # Workers wait for each other in every window: one whose core another process uses makes all wait for milliseconds.
    # The load average would still count, for minutes, what has ended before this run. This process sleeps meanwhile.
    before = _times_of_processors(root)
    time.sleep(_LOOK_S)
    after = _times_of_processors(root)
    used = 0.0  # processors in use, by the share of their time that passed
    for cpu in before.keys() & after.keys():
        idle, total = (end - begin for begin, end in zip(before[cpu], after[cpu], strict=True))
        used += 1 - idle / total if total > 0 else 0
    return max(1, min(usable_cores(root), math.floor(len(_usable_processors()) - used + 0.5)))


def _usable_processors() -> set[int]:
    """Return the numbers of the processors on which this process may run."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _times_of_processors(root: Path) -> dict[int, tuple[int, int]]:
    """Return the time idle and in all of each processor that this process may use; {} where `root` has none."""
    usable, found = {f"cpu{cpu}": cpu for cpu in _usable_processors()}, {}
    for line in lines(root / "proc/stat"):
        name, *times = line.split()
        if name in usable:
            # user, nice, system, idle, waiting for disks, interrupts, ... (proc(5)); guests are part of user and nice
            spent = [int(each) for each in times[:8]]
            found[usable[name]] = spent[3] + spent[4], sum(spent)
    return found


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

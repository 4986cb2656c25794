"""`nadi` with a fault: `driver.py FAULT ARGUMENTS...`; FAULT is a name of FAULTS, "@" and who has it, or "none".

Who: "everyone", "rank 1", "worker 1" (a forked process), "thread 1" (the second of its process).
"""

import itertools
import multiprocessing
import os
import pkgutil
import resource
import signal
import sys
import threading
import time

from nadi.__main__ import entry_point
from nadi.launching import progress

LONG_S = 60
LONGEST_FILE_BYTES = 2000
CALLS = itertools.count(1)


class InjectedError(Exception):
    pass


def is_here(who):
    kind, _, number = who.partition(" ")
    if kind == "rank":
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank() == int(number)
    if kind == "worker":
        return multiprocessing.current_process().name == who
    if kind == "thread":
        return threading.current_thread() is not threading.main_thread()
    return True


def before(function, action, who):
    """Have `action` done before a function, named as "module.function"."""
    place, _, name = function.rpartition(".")
    owner = pkgutil.resolve_name(place)
    real = getattr(owner, name)

    def faulty(*arguments, **options):
        if is_here(who):
            action()
        return real(*arguments, **options)

    setattr(owner, name, faulty)


def boom():
    raise InjectedError("boom")


def boom_later():
    time.sleep(0.5)
    boom()


def short_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_FILE_BYTES, resource.RLIM_INFINITY))


def linger():
    sys.stderr.write("lingering\n")
    sys.stderr.flush()
    time.sleep(LONG_S)


def linger_at_the_fourth():
    if next(CALLS) == 4:
        linger()


def end_at_the_first():
    if next(CALLS) == 1:
        os.kill(os.getpid(), signal.SIGTERM)


FAULTS = {
    # in a window, where the kernel returns for more memory
    "windows": (boom, "nadi.pdes.workers.grow"),
    # before the first window, while the others are in theirs
    "starting": (boom_later, "nadi.pdes.workers.WorkerPool._work"),
    "reading": (boom, "nadi.simulation.assembly.reading.WorkReader.work"),
    "building": (boom, "nadi.pdes.construction.build_lps", "nadi.pdes.driver.build_lps"),
    "collecting": (boom, "nadi.pdes.driver.outcome_of"),
    "writing": (boom, "nadi.reports.run_folder._nodes_table"),
    # from the first table on, no file can become longer than some bytes
    "no_room": (short_files, "nadi.reports.run_folder._rows_of_npu"),
    # stays for a minute between two tables
    "slow_writing": (linger, "nadi.reports.run_folder._links_table"),
    # asks itself to end while it writes the first checkpoint
    "ended_while_saving": (end_at_the_first, "nadi.launching.checkpoints.CheckpointFolder.commit"),
    # stays for a minute while it writes the fifth checkpoint
    "slow_saving": (linger_at_the_fourth, "nadi.launching.checkpoints.CheckpointFolder.commit"),
}
"""What is done, and before which functions: under each name by which they are called."""


def run(fault, *arguments):
    """Do a command with a fault, and end the process."""
    fault, _, who = fault.partition("@")
    if fault != "none":
        action, *functions = FAULTS[fault]
        for function in functions:
            before(function, action, who)
    os.environ.pop("NADI_DEBUG", None)
    progress.LINE_EVERY_S = progress.RENEW_EVERY_S = 0.1
    sys.argv = ["nadi", *arguments]
    entry_point()


if __name__ == "__main__":
    run(*sys.argv[1:])

"""`nadi` with a fault: `driver.py FAULT ARGUMENTS...`; FAULT is a name of FAULTS, "@" and who has it, or "none".

Who: "everyone", "rank 1", "worker 1" (a forked process), "thread 1" (the second of its process).
"""

import multiprocessing
import os
import resource
import sys
import threading
import time

from nadi import progress
from nadi.cli import main

progress.LINE_EVERY_S = 0.1
LONG_S = 60
LONGEST_FILE_BYTES = 2000


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


def before(module, name, action, who):
    """Have `action` done before a function."""
    real = getattr(module, name)

    def faulty(*arguments, **options):
        if is_here(who):
            action()
        return real(*arguments, **options)

    setattr(module, name, faulty)


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


def windows(who):
    """In a window, where the kernel returns for more memory."""
    from pdes import crew

    before(crew, "grow", boom, who)


def starting(who):
    """Before the first window, while the others are in theirs."""
    from pdes.crew import Crew

    before(Crew, "_work", boom_later, who)


def reading(who):
    from nadi import placement

    before(placement, "read_work", boom, who)


def building(who):
    from pdes import build, processes, ranks

    for module in (build, processes, ranks):
        before(module, "build_lps", boom, who)


def harvesting(who):
    from pdes import driver, processes, ranks

    for module in (driver, processes, ranks):
        before(module, "harvest", boom, who)


def writing(who):
    from nadi import results

    before(results, "_nodes", boom, who)


def no_room(who):
    """From the first table on, no file can become longer than some bytes."""
    from nadi import results

    before(results, "_rows_of_npu", short_files, who)


def slow_writing(who):
    """Stays for a minute between two tables."""
    from nadi import results

    before(results, "_links", linger, who)


FAULTS = {
    function.__name__: function
    for function in (windows, starting, reading, building, harvesting, writing, no_room, slow_writing)
}


if __name__ == "__main__":
    fault, _, who = sys.argv[1].partition("@")
    if fault != "none":
        FAULTS[fault](who)
    os.environ.pop("NADI_DEBUG", None)
    sys.exit(main(sys.argv[2:]))

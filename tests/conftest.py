"""Fixtures of all tests."""

import fcntl
import gc
import io
import signal
import sys
from concurrent.futures import Executor, Future
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from nadi.cli.main import main
from nadi.et import decoder
from nadi.launching.installation import nadi_command
from nadi.studies import sweeps
from tests import durations
from tests.budgets import bounded
from tests.needs import SHARED

ROOMS = ("compiling", "et", "inputs", "partition", "pdes", "topologies", "workload")
sys.modules.update(
    dict.fromkeys(ROOMS)
)  # `import pdes` fails: in the root of the checkout it would be a second `nadi.pdes`

settings.register_profile("nadi", bounded(100))
settings.load_profile("nadi")  # for tests of random examples that do not say how many

gc.set_threshold(50_000)  # searches for garbage after 700 new objects, as is usual, take a tenth of the suite's time


BUSY = {"faults", "parallel"}
"""Folders of tests that start several workers which wait for each other, or end them at certain moments."""
FULL = {"slurm"}
"""Folders of tests that `make test-all` runs, and `make test` does not."""


def pytest_configure(config):
    """Have signals mean what they do in a terminal; under nohup, or in the background, some are ignored.

    The product heeds that, so tests of how it ends would wait in vain.
    """
    config.pluginmanager.register(durations, "durations of tests")
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_ignore_collect(collection_path, config):
    """Do not look into folders of which -m wants nothing."""
    is_folder = collection_path.is_dir() and collection_path.parent == Path(__file__).parent
    return True if is_folder and config.option.markexpr == "not full" and collection_path.name in FULL else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of folders before pytest selects by marks, and put those marked `alone`, then busy ones, first.

    Of pytest-xdist's workers the first then does these while others do half of the rest, and steal the other half.
    """
    for item in items:
        if item.path.parent.name in BUSY:
            item.add_marker("busy")
        if item.path.parent.name in FULL:
            item.add_marker("full")
    items.sort(key=lambda item: (not needs_all_cores(item), item.get_closest_marker("busy") is None))


def needs_all_cores(item):
    """Return whether a test (None: no test) has the mark `alone`."""
    return item is not None and item.get_closest_marker("alone") is not None


@cache
def all_cores(config):
    """Return a file that a worker of pytest-xdist locks while it does tests marked `alone`, one after another."""
    return (config._tmp_path_factory.getbasetemp().parent / "alone").open("w")


def pytest_runtest_setup(item):
    """Begin no test while another worker of pytest-xdist does tests marked `alone`."""
    if hasattr(item.config, "workerinput"):
        is_alone = needs_all_cores(item)
        fcntl.flock(all_cores(item.config), fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        if not is_alone:
            fcntl.flock(all_cores(item.config), fcntl.LOCK_UN)


def pytest_runtest_teardown(item, nextitem):
    """Let the other workers of pytest-xdist go on after the last of several tests marked `alone`."""
    if hasattr(item.config, "workerinput") and needs_all_cores(item) and not needs_all_cores(nextitem):
        fcntl.flock(all_cores(item.config), fcntl.LOCK_UN)


def pytest_collection_finish():
    """Thousands of tests and the modules that they import are no garbage, and are not searched for any."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def byte_code(tmp_path_factory):
    """Where Python must leave no byte code beside sources, the processes that tests start share it elsewhere.

    In pytest's own folder in the temporary one, from one run of the tests to the next.
    """
    own = tmp_path_factory.getbasetemp()
    lasting = next((folder for folder in own.parents if folder.name.startswith("pytest-of-")), own)
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", str(lasting / "byte-code"))
        yield


@pytest.fixture(autouse=True)
def one_busy_test_at_a_time(request, tmp_path_factory):
    """Two tests with two workers each would wait for cores more than they compute."""
    if request.node.get_closest_marker("busy") is None:
        yield
        return
    with (tmp_path_factory.getbasetemp().parent / "busy").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def nothing_read_yet():
    """A test begins as a process does: small traces that others have read do not count."""
    decoder._small_files["bytes"] = 0


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real inputs made by others, where a checkout has one."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}; NADI_SHARED says where another is")
    return folder


class _Inline(Executor):
    """An executor that runs each task when it is submitted, in the thread that submits it."""

    def __init__(self, _threads):
        super().__init__()

    def submit(self, function, /, *arguments, **keywords):
        future = Future()
        future.set_result(function(*arguments, **keywords))
        return future


@contextmanager
def points_in_this_process():
    """Have `nadi sweep` run its points in this process, where kernels are loaded: a process for each costs seconds."""

    @contextmanager
    def commands():
        def run(command):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
                code = main(command[len(nadi_command([])) :])
            return code, errors.getvalue()

        yield run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "_processes", commands)
        patch.setattr(sweeps, "ThreadPoolExecutor", _Inline)
        yield


@pytest.fixture
def points_here():
    """Run the points of sweeps in this process during a test."""
    with points_in_this_process():
        yield

"""Runs that are started to be ended."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from nadi import et
from nadi.cli.main import main
from nadi.pdes.workers import compile_kernels
from tests.faults import driver, segments
from tests.forked import Forked
from tests.needs import BIN, NO_MPICH

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.py")
MARK = "NADI_TEST_RUN"
WAYS = {
    "serial": [],
    "threads": ["--workers", "2"],
    "processes": ["--workers", "2", "--backend", "processes"],
    "ranks": [],
    "ranks of two nodes": ["--set", "engine.share_memory=false"],
}
STARTS_S = 30
STRAYS_S = 5


class Run:
    """A started run: its process (mpiexec, where there are ranks), and all that it has started."""

    def __init__(self, process, mark, out, err):
        self.process = process
        self._mark = f"{MARK}={mark}".encode()
        self._out, self._err = out, err
        self.segments = set()

    @property
    def pids(self):
        """Processes of this run that live, in the order in which they were started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()
                is_of_session = self.process.pid in {int(state[3]), int(folder.name)}
                is_marked = is_of_session or self._mark in (folder / "environ").read_bytes().split(b"\0")
                if is_marked and state[0] != "Z":
                    found.append((int(state[19]), int(folder.name)))
        return [pid for _, pid in sorted(found)]

    def pid_of_rank(self, rank):
        """The process of an MPI rank."""
        for pid in self.pids:
            with suppress(OSError):
                if f"PMI_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
        raise LookupError(rank)

    def pid_of_child(self):
        """A process that the first has forked."""
        (child,) = [pid for pid in self.pids if pid != self.process.pid]
        return child

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def told(self):
        """Lines of Nadi's own errors."""
        return [line for line in self.err.splitlines() if line.startswith("nadi: error:")]

    def until(self, text, *, is_out=False):
        """Wait for something on standard error, or standard output."""
        end = time.monotonic() + STARTS_S
        while text not in (self.out if is_out else self.err):
            assert self.process.poll() is None, self.err
            assert time.monotonic() < end, self.err
            time.sleep(0.02)
        self.segments = segments.mapped(self.pids)

    def until_ranks_map(self, library, ranks):
        """Wait until all ranks have begun to load a library."""
        end = time.monotonic() + STARTS_S
        waiting = set(range(ranks))
        while waiting:
            assert time.monotonic() < end, (waiting, self.err)
            time.sleep(0.01)
            for rank in sorted(waiting):
                with suppress(LookupError, OSError):
                    if library in Path(f"/proc/{self.pid_of_rank(rank)}/maps").read_text():
                        waiting.discard(rank)

    def ended(self, within_s):
        """The exit code; nothing that the run has started lives longer."""
        begun = time.monotonic()
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.pids} live on after {within_s} s\n{self.err}")
        while self.pids and time.monotonic() < begun + within_s:
            time.sleep(0.02)
        assert self.pids == [], self.err
        return code


@pytest.fixture(scope="session", autouse=True)
def compiled(short):
    """Tests of how fast a run ends do not wait for a compiler of kernels: a run has been done before."""
    compile_kernels()
    assert main(["run", str(short), "--quiet"]) == 0


@pytest.fixture(scope="session")
def run_file(tmp_path_factory):
    """A function of bytes to a run file: eight NPUs in a ring send each other so much."""

    def write(size):
        folder = tmp_path_factory.mktemp("run")
        for npu in range(8):
            nodes = [et.coll_node(1, "grads", et.CollectiveCommType.ALL_TO_ALL, size)]
            et.write_trace(folder / f"trace.{npu}.et", et.metadata(), nodes)
        path = folder / "run.toml"
        path.write_text('[workload]\ntraces = "trace"\n[topology]\nspec = "ring:npus=8,rate=100Gbps,delay=1us"\n')
        return path

    return write


@pytest.fixture(scope="session")
def endless(run_file):
    """A run of some hours."""
    return run_file(1 << 44)


@pytest.fixture(scope="session")
def short(run_file):
    return run_file(1 << 20)


@pytest.fixture
def start_command(tmp_path):
    """Start `nadi` by a launcher, or fork it from this process (None); what is left of it is killed after the test.

    The keyword `fault` is one of tests/faults/driver.py (None: `nadi` as users start it).
    """
    runs = []

    def started(launcher, *arguments, fault="none"):
        mark = uuid.uuid4().hex
        outer = ("NADI_DEBUG", "NADI_LAUNCHER", "PMI", "OMPI", "SLURM", "HYD")
        usual = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        out, err = (tmp_path / f"{mark}.{name}" for name in ("out", "err"))
        words = [*map(str, arguments)]
        for path in (out, err):
            path.touch()

        def forked():
            os.environ.clear()
            os.environ.update(usual)
            driver.run(fault, *words)

        if launcher is None:
            process = Forked(forked, out, err)
        else:
            command = ["-m", "nadi"] if fault is None else [str(DRIVER), fault]
            with out.open("wb") as stdout, err.open("wb") as stderr:
                process = subprocess.Popen(
                    [*launcher, sys.executable, *command, *words],
                    cwd=ROOT,
                    env=usual | {"PYTHONPATH": str(ROOT), MARK: mark},
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
        runs.append(Run(process, mark, out, err))
        return runs[-1]

    yield started
    for run in runs:
        for pid in run.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait(STRAYS_S)
        segments.remove(run.segments)


@pytest.fixture
def start(start_command):
    def started(way, run, *options, fault="none"):
        launcher = None
        if way.startswith("ranks"):
            if NO_MPICH:
                pytest.skip(NO_MPICH)
            launcher = [str(BIN / "mpiexec"), "-n", "2"]
        return start_command(launcher, "run", run, *WAYS[way], *options, fault=fault)

    return started

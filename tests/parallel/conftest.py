"""Fixtures of tests that run in several ways."""

import faulthandler
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests.needs import NO_RANKS
from tests.parallel.on_call import called

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
STUCK_S = 600
ANSWERS_S = 120


@pytest.fixture(autouse=True)
def stuck(request):
    """Workers that wait for each other for ever end the tests, with a traceback of every thread."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True, file=request.config.stash[fault_handler_stderr_fd_key])
    yield
    faulthandler.cancel_dump_traceback_later()


def python_on(ranks, arguments):
    """How to start Python on some ranks; None: without MPI."""
    if ranks is not None and NO_RANKS:
        pytest.skip(NO_RANKS)
    launcher = [] if ranks is None else [str(MPIEXEC), "-n", str(ranks)]
    return [*launcher, sys.executable, *map(str, arguments)]


def environ(more):
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("NADI_DEBUG", "PMI"))}
    return usual | {"PYTHONPATH": str(ROOT)} | more


@pytest.fixture(scope="session")
def python():
    """Run Python on some ranks (None: without MPI); its arguments; gives the completed process."""

    def run(ranks, *arguments, timeout=240, **environment):
        return subprocess.run(
            python_on(ranks, arguments),
            cwd=ROOT,
            env=environ(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


class OnCall:
    """Processes that do command after command, see tests/parallel/on_call.py: one start of Python and MPI for all.

    Args:
        stack: of what is to be closed; that ends them, and they must end well.
        ranks: how many, None = one without MPI.
        environment: what they have besides this process's own.
    """

    def __init__(self, stack, ranks, environment):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nadi-", dir="/tmp")))  # sockets: short
        self._errors = folder / "errors"
        with socket.socket(socket.AF_UNIX) as door, self._errors.open("wb") as errors:
            door.bind(str(folder / "door"))
            door.listen()
            door.settimeout(ANSWERS_S)
            command = python_on(ranks, ["-m", "tests.parallel.on_call", folder / "door"])
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environ(environment), stdin=subprocess.DEVNULL, stderr=errors
            )
            stack.callback(self._end)
            connections = [stack.enter_context(door.accept()[0]) for _ in range(ranks or 1)]
        self._lines = []
        for connection in connections:
            connection.settimeout(ANSWERS_S)
            self._lines.append(stack.enter_context(connection.makefile("rw", encoding="utf-8")))
        self._lines.sort(key=lambda lines: int(lines.readline()))

    def do(self, arguments):
        """A command on all of them; what all have said, one rank after another, and the one exit code."""
        for lines in self._lines:
            lines.write(json.dumps(arguments) + "\n")
            lines.flush()
        answers = [lines.readline() for lines in self._lines]
        assert all(answers), f"ranks have ended: {self._errors.read_text()}"
        codes, said, told = zip(*map(json.loads, answers), strict=True)
        assert len(set(codes)) == 1, codes
        return subprocess.CompletedProcess(arguments, codes[0], "".join(said), "".join(told))

    def _end(self):
        """When their sockets are closed."""
        code = self._process.wait(ANSWERS_S)
        assert (code, self._errors.read_text()) == (0, "")


@pytest.fixture(scope="session")
def nadi():
    """Run a command on ranks that may have done others before, or in this process (None); gives what `python` gives."""
    with ExitStack() as stack:
        on_call = {}

        def run(ranks, *arguments, **environment):
            words = [str(argument) for argument in arguments]
            if ranks is None and not environment:
                with pytest.MonkeyPatch.context() as patch:
                    patch.delenv("NADI_DEBUG", raising=False)
                    return subprocess.CompletedProcess(words, *called(words))
            wanted = ranks, *environment.items()
            ranks_on_call = on_call.pop(wanted, None) or OnCall(stack, ranks, environment)
            done = ranks_on_call.do(words)
            on_call[wanted] = ranks_on_call  # which still answer
            return done

        yield run

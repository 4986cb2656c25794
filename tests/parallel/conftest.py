"""Fixtures of tests that run in several ways."""

import faulthandler
import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from nadi.cli import main
from tests.needs import NO_RANKS

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).parent / "mpiexec"
STUCK_S = 600


@pytest.fixture(autouse=True)
def stuck(request):
    """Workers that wait for each other for ever end the tests, with a traceback of every thread."""
    faulthandler.dump_traceback_later(STUCK_S, exit=True, file=request.config.stash[fault_handler_stderr_fd_key])
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def python():
    """Run Python on some ranks (None: without MPI); its arguments; gives the completed process."""

    def run(ranks, *arguments, timeout=240, **environment):
        command = [sys.executable, *map(str, arguments)]
        if ranks is not None:
            if NO_RANKS:
                pytest.skip(NO_RANKS)
            command = [str(MPIEXEC), "-n", str(ranks), *command]
        usual = {name: value for name, value in os.environ.items() if not name.startswith(("NADI_DEBUG", "PMI"))}
        return subprocess.run(
            command,
            cwd=ROOT,
            env=usual | {"PYTHONPATH": str(ROOT)} | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def nadi(python):
    """Run a command on some ranks, or in this process (None); gives what `python` gives."""

    def run(ranks, *arguments, **environment):
        if ranks is not None or environment:
            return python(ranks, "-m", "nadi", *arguments, timeout=120, **environment)
        said, told = io.StringIO(), io.StringIO()
        with redirect_stdout(said), redirect_stderr(told), pytest.MonkeyPatch.context() as patch:
            patch.delenv("NADI_DEBUG", raising=False)
            code = main([str(argument) for argument in arguments])
        return subprocess.CompletedProcess(arguments, code, said.getvalue(), told.getvalue())

    return run

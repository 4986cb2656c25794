"""A child process that begins with all that this one has imported, which takes Python 0.6 s of CPU."""

import os
import signal
import subprocess
import sys
import time
import traceback

DEFECT = 99
"""Exit code of a function that ends with an exception."""
LOOKS_S = 0.003


class Forked:
    """A process that calls a function, and what of `subprocess.Popen` tests use.

    Args:
        function: Function without arguments that returns an exit code, or raises SystemExit with one.
        out: Path of the file for standard output.
        err: Path of the file for standard error; may be the same.
    """

    def __init__(self, function, out, err):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            code = DEFECT
            try:
                code = _called(function, out, err)
            except SystemExit as ended:
                code = ended.code
            except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)

    def poll(self):
        """Return the exit code, minus the number of a signal that ended the process; None = it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=60):
        """Return the exit code as soon as there is one."""
        end_s = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(LOOKS_S)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _called(function, out, err):
    """Call a function in a session of its own; pytest has streams of its own in place of Python's."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, flags), number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    try:
        return function()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

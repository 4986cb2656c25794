"""Run by mpiexec, or alone: does command after command of `nadi`, as long as somebody asks.

Argument: the name of a Unix socket. Each process says its rank there; then it answers each line, a JSON list of
arguments, with its exit code, output and errors. Between two commands it waits for the socket and not for other ranks,
since a rank that waits in MPI keeps its core busy.
"""

import io
import json
import os
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout

from nadi.cli.main import main
from nadi.launching.ranks import launched_rank


def called(arguments):
    said, told = io.StringIO(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(told):
        code = main(arguments)
    return code, said.getvalue(), told.getvalue()


def answer(name):
    """Answer until nobody asks any more."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(name)
        with connection.makefile("rw", encoding="utf-8") as lines:
            lines.write(f"{launched_rank(os.environ) or 0}\n")
            lines.flush()
            for line in lines:
                lines.write(json.dumps(called(json.loads(line))) + "\n")
                lines.flush()


if __name__ == "__main__":
    answer(sys.argv[1])

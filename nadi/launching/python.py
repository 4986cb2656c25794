"""How Nadi starts Python once more: the folder in which the user works is never on its import path.

`python -m` and `python -c` would put that folder first, so that a `json.py` or `typer.py` that lies in it is executed.
"""

import sys
from collections.abc import Sequence

PYTHON = (sys.executable, "-P")
"""This Python in safe-path mode."""


def nadi_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `nadi` with these arguments."""
    return [*PYTHON, "-m", "nadi", *arguments]


def code_command(code: str) -> list[str]:
    """Return the command that runs Python code."""
    return [*PYTHON, "-c", code]

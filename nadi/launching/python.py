"""Commands that start Python in safe-path mode, without the user's current folder on the import path.

`python -m` and `python -c` put that folder first, so Python would run a `json.py` or `typer.py` from it.
"""

import sys
from collections.abc import Sequence

PYTHON = (sys.executable, "-P")  # This Python in safe-path mode


def nadi_command(arguments: Sequence[str]) -> list[str]:
    """Return the command that runs `nadi` with these arguments."""
    return [*PYTHON, "-m", "nadi", *arguments]


def code_command(code: str) -> list[str]:
    """Return the command that runs Python code."""
    return [*PYTHON, "-c", code]

"""Compiles the kernels that tests need, or one of two parts of them: python -m tests.kernels [entries | hooks]

`make test` does it beside the linters. Otherwise two workers of pytest-xdist would begin by compiling the same kernels.
"""

import sys

from nadi.pdes.driver import compile_entries, compile_hooks
from nadi.simulation.closed_forms.advancing.run import compile_closed_form


def entries():
    """Compile the kernels that Python calls."""
    compile_entries()
    compile_closed_form()


PARTS = {"entries": entries, "hooks": compile_hooks}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()

"""Entry point of `nadi` and `python -m nadi`; Ctrl-C ends it with one line, even during imports."""

import os
import sys
from typing import NoReturn

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m nadi` puts the user's folder first on the import path, so Python would import a `json.py` or
    # `workload.py` from it. The folder stays on the path only if it contains Nadi itself.
    _FOUND_IN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - no pathlib yet
    if sys.path[0] != _FOUND_IN:
        del sys.path[0]


def entry_point() -> NoReturn:
    """Run the console script `nadi`."""
    # closed standard streams (`>&-`) are opened on /dev/null, so that no other file gets their descriptors
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123 - open until the process ends
    try:
        from nadi.cli import main as cli
    except KeyboardInterrupt:
        from nadi.launching.ending import INTERRUPTED, say_interrupted

        say_interrupted()
        sys.exit(INTERRUPTED)
    cli.entry_point()


if __name__ == "__main__":
    entry_point()

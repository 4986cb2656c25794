"""`python -m nadi` is the command `nadi`; Ctrl-C ends it in one line, also while modules are imported."""

import os
import sys
from typing import NoReturn

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m nadi` puts the user's folder first on the import path, and a `json.py` or `workload.py` there would be
    # taken for ours. It stays only where Nadi itself was found in it.
    _FOUND_IN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - no pathlib yet
    if sys.path[0] != _FOUND_IN:
        del sys.path[0]


def _open_closed_streams() -> None:
    """Have standard streams that were closed (`>&-`) lead nowhere; else a file could get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123 - open until the process ends


def entry_point() -> NoReturn:
    """Run the console script `nadi`."""
    _open_closed_streams()
    try:
        from nadi.cli import main as cli
    except KeyboardInterrupt:
        from nadi.launching.ending import INTERRUPTED, say_interrupted

        say_interrupted()
        sys.exit(INTERRUPTED)
    cli.entry_point()


if __name__ == "__main__":
    entry_point()

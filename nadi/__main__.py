"""`python -m nadi` is the command `nadi`; Ctrl-C ends it in one line while Python still reads it in."""

import _signal  # type: ignore[import-not-found]  # the module without its names: those take longer
import gc
import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    # `python -m nadi` puts the user's folder first on the import path, and a `json.py` or `workload.py` there would be
    # taken for ours. It stays only where Nadi itself was found in it.
    _FOUND_IN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - no pathlib yet
    if sys.path[0] != _FOUND_IN:
        del sys.path[0]

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

OBJECTS = 50_000
"""Made between two searches for garbage: what is imported is none, and 700, Python's, cost a tenth of a short run."""


def _end(*_: object) -> None:
    """Nothing is there to be cleaned up, and no rank knows of another."""
    if all(os.environ.get(name, "0") == "0" for name in _RANKS):
        os.write(2, b"nadi: error: interrupted\n")
    os._exit(130)


def _open_closed_streams() -> None:
    """Have standard streams that were closed (`>&-`) lead nowhere; else a file could get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode))  # noqa: SIM115, PTH123 - open until the process ends


def entry_point() -> None:
    """The console script `nadi`."""
    _open_closed_streams()
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
    gc.set_threshold(OBJECTS)
    from nadi.cli import main as cli

    cli.entry_point(_end)


if __name__ == "__main__":
    entry_point()

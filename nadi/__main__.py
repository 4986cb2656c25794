"""`python -m nadi` is the command `nadi`; Ctrl-C ends it in one line while Python still reads it in."""

import _signal  # type: ignore[import-not-found]  # the module without its names: those take longer
import gc
import os

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

OBJECTS = 50_000
"""Made between two searches for garbage: what is imported is none, and 700, Python's, cost a tenth of a short run."""


def _end(*_: object) -> None:
    """Nothing is there to be cleaned up, and no rank knows of another."""
    if all(os.environ.get(name, "0") == "0" for name in _RANKS):
        os.write(2, b"nadi: error: interrupted\n")
    os._exit(130)


def entry_point() -> None:
    """The console script `nadi`."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _end)
    gc.set_threshold(OBJECTS)
    from nadi import cli

    cli.entry_point(_end)


if __name__ == "__main__":
    entry_point()

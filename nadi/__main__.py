"""`python -m nadi` is the command `nadi`; Ctrl-C ends it in one line while Python still reads it in."""

import _signal  # type: ignore[import-not-found]  # the module without its names: those take longer
import gc
import os
import sys

TYPE_CHECKING = False  # typing is not imported yet
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")

OBJECTS = 50_000
"""Made between two searches for garbage: what is imported is none, and 700, Python's, cost a tenth of a short run."""


class _WithoutPandas:
    """Finds a pandas that cannot be imported: pyarrow does before its first array, a quarter of a short run.

    No command needs it. Whoever only asks for its spec gets one, as PyTorch does, which does not expect an error there.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":  # noqa: ARG004 - as all
        """Of pandas, one that this class is to load."""
        made: type[ModuleSpec] = type(sys.__spec__)  # importlib.machinery's, which is not imported yet
        return made(name, _WithoutPandas) if name == "pandas" else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: "ModuleSpec") -> None:
        """As where it is not installed."""
        raise ModuleNotFoundError(spec.name, name=spec.name)

    exec_module = create_module


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
    sys.meta_path.insert(0, _WithoutPandas)
    from nadi import cli

    cli.entry_point(_end)


if __name__ == "__main__":
    entry_point()

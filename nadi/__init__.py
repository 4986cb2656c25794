"""The front door: command line, run files, wiring of the stages, results and reports.

`nadi.simulate(...)` runs a simulation from Python, `nadi.Run(folder)` opens the results of an earlier one.
"""

from typing import TYPE_CHECKING, Any

from nadi.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from nadi.api import simulate
    from nadi.runs import Run

__version__ = "0.1.0.dev0"

__all__ = ["ConfigError", "OutputError", "Run", "__version__", "simulate"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module offers
    """What is heavy is imported when it is asked for: `nadi --help` must start fast."""
    if name == "simulate":
        from nadi.api import simulate

        return simulate
    if name == "Run":
        from nadi.runs import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

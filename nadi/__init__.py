"""Command line, run files, simulation stages, results and reports.

`nadi.simulate(...)` runs a simulation from Python, `nadi.generate(...)` generates traces of a model for it, and
`nadi.Run(folder)` opens the results of an earlier run. `nadi.plan(...)` ranks parallel plans. `nadi.explain(run)`,
`nadi.compare(run, other)` and `nadi.net(run)` return what the commands of these names print as JSON.
`nadi.open_network(...)` is a network without NPUs, for simulators that have their own.
"""

from typing import TYPE_CHECKING, Any

from nadi.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from nadi.api import compare, explain, generate, net, open_network, plan, simulate
    from nadi.insight.runs import Run

__version__ = "0.4.0.dev0"

__all__ = [
    "ConfigError",
    "OutputError",
    "Run",
    "__version__",
    "compare",
    "explain",
    "generate",
    "net",
    "open_network",
    "plan",
    "simulate",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module offers
    """Import a heavy module on first use of its name, because `nadi --help` must start fast."""
    if name in {"compare", "explain", "generate", "net", "open_network", "plan", "simulate"}:
        from nadi import api

        return getattr(api, name)
    if name == "Run":
        from nadi.insight.runs import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

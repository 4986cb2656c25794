"""Command line, run files, simulation stages, results and reports.

`nadi.simulate(...)` runs a simulation from Python, `nadi.generate(...)` generates traces of a model for it, and
`nadi.Run(folder)` opens the results of an earlier run. `nadi.plan(...)` ranks parallel plans, `nadi.collective(...)`
times collectives, `nadi.expect(...)` says what nccl-tests should show on a cluster, `nadi.calibrate(...)` fits a
cluster's constants to measured times, `nadi.diagnose(...)` says why these are slow, and `nadi.sweep(...)` simulates
variants of a run file. `nadi.explain(run)`,
`nadi.compare(run, other)`, `nadi.net(run)` and `nadi.slowdown(run, other)` return what the commands print as JSON.
`nadi.open_network(...)` is a network without NPUs, for simulators that have their own.
"""

from typing import TYPE_CHECKING, Any

from nadi.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from nadi.api import (
        calibrate,
        collective,
        compare,
        diagnose,
        expect,
        explain,
        generate,
        net,
        open_network,
        plan,
        simulate,
        slowdown,
        sweep,
    )
    from nadi.insight.runs import Run

__version__ = "0.7.0"

__all__ = [
    "ConfigError",
    "OutputError",
    "Run",
    "__version__",
    "calibrate",
    "collective",
    "compare",
    "diagnose",
    "expect",
    "explain",
    "generate",
    "net",
    "open_network",
    "plan",
    "simulate",
    "slowdown",
    "sweep",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module offers
    """Import a heavy module on first use of its name, because `nadi --help` must start fast."""
    if name == "Run":
        from nadi.insight.runs import Run

        return Run
    if name in __all__:
        from nadi import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what the package offers, whether it is imported yet or not."""
    return __all__

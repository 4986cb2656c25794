"""Checks of traces, one per file; every file in this folder is a check.

A file has NAME, LOOKS_FOR (a clause, for the list of checks) and a class `TraceCheck`, a `Check`. `check_traces` passes
each trace once to all of them, so that traces of thousands of NPUs need the memory of the largest one.
"""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from et.checking.check import Check, CheckContext, open_trace
from et.checking.finding import CheckReport
from et.checking.sources import Sources


def all_checks() -> list[ModuleType]:
    """Return the modules of this folder, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def check_traces(sources: Sources, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
    """Check traces with every check; all problems are in the report. `progress` gets the number of checked traces."""
    context = CheckContext(sources)
    checks: list[tuple[str, Check]] = [(module.NAME, module.TraceCheck(context)) for module in all_checks()]
    report = CheckReport(str(sources.path), sources.npus)
    for trace, file in enumerate(sources.files):
        opened = open_trace(trace, file)
        report.traces += 1
        for name, check in checks:
            report.add(name, check.file(opened))
        if opened.checked is None:
            context.unread.add(trace)
        else:
            report.nodes += len(opened.checked.table)
            for name, check in checks:
                report.add(name, check.trace(opened.checked))
        progress(trace + 1)
    for name, check in checks if sources.is_complete else ():
        report.add(name, check.end())
    return report

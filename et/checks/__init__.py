"""What can be wrong with traces, one file each, found by looking into this folder.

A file has NAME, LOOKS_FOR (a clause, for the list of checks) and a class `Look`, a `Check`. `check_traces` has all of
them look at each trace once, so that traces of thousands of NPUs need the memory of the largest.
"""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from et.checking.check import Check, CheckContext
from et.checking.opened import open_trace
from et.checking.report import CheckReport
from et.checking.sources import Sources


def all_checks() -> list[ModuleType]:
    """The modules of this folder, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def check_traces(sources: Sources, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
    """Look at traces with every check; what is wrong is in the report, nothing is raised.

    Args:
        sources: the traces.
        progress: told how many have been looked at.
    """
    around = CheckContext(sources)
    looks: list[tuple[str, Check]] = [(module.NAME, module.Look(around)) for module in all_checks()]
    report = CheckReport(str(sources.path), sources.npus)
    for trace, file in enumerate(sources.files):
        opened = open_trace(trace, file)
        report.traces += 1
        for name, look in looks:
            report.add(name, look.file(opened))
        if opened.looked is None:
            around.unread.add(trace)
        else:
            report.nodes += len(opened.looked.table)
            for name, look in looks:
                report.add(name, look.trace(opened.looked))
        progress(trace + 1)
    for name, look in looks if sources.whole else ():
        report.add(name, look.end())
    return report

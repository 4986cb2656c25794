"""Checks of traces, one per file: those of this folder and of installed packages, and files of users.

A file has LOOKS_FOR (a clause, for the list of checks) and a class `TraceCheck`, a `Check`. `check_traces` passes
each trace once to all of them, so that traces of thousands of NPUs need the memory of the largest one.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nadi.et.checking import Check, CheckContext, Sources, open_trace
from nadi.et.checking.finding import CheckReport
from nadi.et.errors import TraceError
from nadi.inputs import plug_ins

_KIND = "trace check"


def all_checks(files: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the modules of all checks by name, with those in files of the user's.

    Args:
        files: The paths of the user's files with checks.
    """
    return {Path(name).stem: plug_ins.module(_KIND, name, TraceError) for name in [*plug_ins.names(_KIND), *files]}


def check_traces(
    sources: Sources, progress: Callable[[int], None] = lambda _: None, files: Sequence[str] = ()
) -> CheckReport:
    """Check traces with every check; all problems are in the report.

    Args:
        sources: The traces to check, the NPUs that run them, and their groups.
        progress: A function that gets the number of checked traces.
        files: The paths of the user's files with further checks.
    """
    context = CheckContext(sources)
    checks: list[tuple[str, Check]] = [(name, module.TraceCheck(context)) for name, module in all_checks(files).items()]
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

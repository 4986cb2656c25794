"""Runs of a configuration with progress and report: the end of every command that simulates one."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nadi.cli.output import print_json
from nadi.terminal import say

if TYPE_CHECKING:
    from nadi.api.running import RunRequest
    from nadi.launching.world import RankGather
    from nadi.simulation.run_plan import FinishedRun


def run_and_report(
    request: "RunRequest",
    ranks: "RankGather",
    begin_s: float,
    *,
    force: bool,
    as_json: bool = False,
    quiet: bool,
    before_report: Callable[["FinishedRun"], None] | None = None,
) -> None:
    """Run a request; print the results, with the time since the command began.

    Args:
        request: The run and its folder of results.
        ranks: Exchange of values between ranks.
        begin_s: Time of the monotonic clock in s at which the command began.
        force: Whether to accept too much work or memory.
        as_json: Whether to print the summary as JSON instead of the report.
        quiet: Whether to show no progress.
        before_report: Function that is called with the finished run on the first rank before the report is printed;
            None = none.
    """
    from nadi.api.running import run
    from nadi.reports.run_folder import summary
    from nadi.reports.text.run import print_report

    outcome = run(request, ranks, force=force, quiet=quiet)
    if outcome is None:
        return
    if before_report is not None:
        before_report(outcome.simulation)
    if as_json:
        print_json(summary(outcome.simulation, outcome.peak_rss_bytes, outcome.findings))
        say(f"results: {request.folder}" if request.folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(outcome.simulation, outcome.findings, request.folder, time.monotonic() - begin_s)
    if outcome.page:
        say(f"page: {outcome.page}", err=as_json)

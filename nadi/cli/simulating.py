"""Simulation of a configuration with progress, results and report: the end of every command that runs one."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nadi.cli.output import print_json
from nadi.terminal.printing import say

if TYPE_CHECKING:
    from nadi.configuration.sections import RunConfig
    from nadi.launching.checkpoints import CheckpointFolder
    from nadi.launching.world import RankGather
    from nadi.simulation.run import FinishedRun


def _checkpoints(
    config: "RunConfig",
    folder: Path | None,
    resumed_from: Path | None,
    arguments: Mapping[str, Any],
    say: Callable[[str], None],
) -> "CheckpointFolder | None":
    """Return the checkpoints of a run, None without any; raise ConfigError without a folder for them."""
    from nadi.errors import ConfigError
    from nadi.launching.checkpoints import CheckpointFolder

    if config.engine.checkpoint == 0 and resumed_from is None:
        return None
    if folder is None:
        raise ConfigError("[engine] checkpoint: found no folder of results; expected --out DIR, or dir in [output]")
    return CheckpointFolder(folder, config.engine.checkpoint, resumed_from, arguments, say)


def simulate_and_report(
    ranks: "RankGather",
    config: "RunConfig",
    folder: Path | None,
    begin_s: float,
    *,
    force: bool,
    as_json: bool,
    quiet: bool,
    before_report: Callable[["FinishedRun"], None] | None = None,
    resumed_from: Path | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> None:
    """Simulate a configuration; write and print the results, with the time since `begin_s` of the monotonic clock.

    `folder` is where the results go, None = nowhere. `before_report` is called with the finished run on the first rank
    before the report is printed. `resumed_from` is the checkpoint from which the run continues; checkpoints of this run
    hold `arguments`, JSON from which `nadi run --resume` finds the configuration.
    """
    from nadi.configuration.from_model import remarks
    from nadi.insight.analysis.findings import merge, part
    from nadi.launching.progress import progress
    from nadi.launching.status import run_status
    from nadi.launching.world import together
    from nadi.reports.result_files.partial import PartialResults
    from nadi.reports.result_files.run_folder import RUN_FILES, SUMMARY_KEY, summary, write_results
    from nadi.reports.result_files.staging import staged
    from nadi.reports.text.run import print_report
    from nadi.simulation.run import simulate

    is_first = ranks.rank == 0
    for remark in remarks(config) if is_first else ():
        say(f"nadi: {remark}", err=True)
    with (
        staged(folder, RUN_FILES, ranks, key=SUMMARY_KEY) if folder else nullcontext() as staging,
        run_status(staging, ranks.size) as status,
    ):
        with progress(quiet=quiet or not is_first) as shown:
            shown.status = status
            with together(ranks):
                checkpoints = _checkpoints(config, folder, resumed_from, arguments or {}, shown.say)
                if checkpoints is not None and is_first:
                    checkpoints.clear()
                    checkpoints.check_parts()
            partial = PartialResults(checkpoints, shown.say) if checkpoints is not None else None
            simulation = simulate(
                config,
                shown,
                ranks,
                force=force,
                keep_flows=folder is not None,
                checkpoints=checkpoints,
                publish=None if partial is None else partial.write,
            )
        status.enter("writing results")
        with together(ranks):
            known = None if partial is None else partial.closed_forms
            parts = ranks.gather(part(simulation, ranks.exchange, known))
            findings = merge(simulation, parts) if parts is not None else None
            if folder:
                write_results(simulation, findings, staging, ranks)
            peaks = ranks.gather(simulation.peak_rss_bytes())
    if checkpoints is not None and is_first:
        checkpoints.remove()
    if findings is None:
        return
    if before_report is not None:
        before_report(simulation)
    if as_json:
        print_json(summary(simulation, peaks, findings))
        say(f"results: {folder}" if folder else "results are not kept: no --out DIR", err=True)
    else:
        print_report(simulation, findings, folder, time.monotonic() - begin_s)

"""The one way from a run file to results, which commands and `nadi.simulate` take: read, resolve, execute, write."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nadi.errors import ConfigError
from nadi.launching.world import ALONE, RankGather, together

if TYPE_CHECKING:
    from nadi.configuration.run_config import RunConfig
    from nadi.insight.run_analysis import ClosedFormKey, RunAnalysis
    from nadi.launching.checkpoints import CheckpointFolder
    from nadi.launching.progress import Progress
    from nadi.simulation.closed_forms import ClosedForm
    from nadi.simulation.run import FinishedRun


class RunRequest(NamedTuple):
    """A run that a user asks for."""

    config: "RunConfig"
    folder: Path | None = None  # folder of the results; None = results are not kept
    has_page: bool = False  # whether the folder gets report.html, too
    resumed_from: Path | None = None  # checkpoint from which the run continues
    arguments: Mapping[str, Any] = {}  # JSON from which a later run that continues this one finds the configuration


class Outcome(NamedTuple):
    """A finished run on the first rank, whose results are written."""

    simulation: "FinishedRun"
    findings: "RunAnalysis"
    peak_rss_bytes: list[int]  # peak memory of each rank in bytes
    page: Path | None  # page that was written


def run_request(
    file: Path | None,
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
    *,
    options: Sequence[str] = (),
    out: Path | None = None,
    report: bool = False,
    resume: Path | None = None,
) -> RunRequest:
    """Return the request of a run; without a file and sections, one that continues has those of its checkpoint.

    file, overrides, sections: as for `load_config`; options: further overrides, which alone are no run without a model;
    out: folder of the results, None = that of the file, or `resume`; report: whether to write report.html, too;
    resume: folder of the results of the run to continue, None = a new run.
    """
    from nadi.configuration.run_file import load_config
    from nadi.launching.checkpoints import newest, read_run

    resumed_from = None if resume is None else newest(resume)
    names_work = file is not None or sections is not None or any(text.startswith("workload.model=") for text in options)
    if resumed_from is not None and not names_work:
        given = read_run(resumed_from).values["arguments"]
        file = Path(given["file"]) if given.get("file") else None  # other commands give none
        overrides = [*given.get("overrides", ()), *overrides]
    if not names_work and file is None and not overrides:
        raise ConfigError(
            "found neither a run file nor --model; expected RUN.toml, or --model NAME --plan PLAN --cluster NAME"
        )
    overrides = [*overrides, *options]
    config = load_config(file, overrides, sections)
    named = config.outputs()
    arguments = {"file": file and str(file.absolute()), "overrides": overrides}
    return RunRequest(config, out or resume or named.folder, report or named.has_page, resumed_from, arguments)


def run(request: RunRequest, ranks: RankGather = ALONE, *, force: bool = False, quiet: bool = False) -> Outcome | None:
    """Run a request to its end and write its results; all ranks call this, and only the first gets an outcome.

    force: whether to try runs that need more memory than is free, or more than a day; quiet: show no progress.
    """
    from nadi.insight.run_analysis import analyse_rank, merge_ranks
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress, run_status
    from nadi.reports.pages import check_page, write_page
    from nadi.reports.run_folder import REPORT, RUN_FILES, SUMMARY_KEY, write_results
    from nadi.reports.staging import staged

    folder, is_first = request.folder, ranks.rank == 0
    page = folder / REPORT if request.has_page and folder else None
    with together(ranks):
        # before the work, so that a page that cannot be written costs nothing
        if page:
            check_page(page)
    with (
        staged(folder, RUN_FILES, ranks, key=SUMMARY_KEY) if folder else nullcontext() as staging,
        run_status(staging, ranks.size) as status,
    ):
        with progress(quiet=quiet or not is_first) as shown:
            shown.status = status
            simulation, checkpoints, known = _executed(request, ranks, shown, force=force)
        status.enter("writing results")
        with together(ranks):
            parts = ranks.gather(analyse_rank(simulation, ranks.exchange, known))
            findings = merge_ranks(simulation, parts) if parts is not None else None
            if folder:
                write_results(simulation, findings, staging, ranks)
            peaks = ranks.gather(simulation.peak_rss_bytes())
    if checkpoints is not None and is_first:
        checkpoints.remove()
    if findings is None or peaks is None:
        return None
    if page and folder:
        from nadi.reports.pages.report import report

        write_page(page, report(Run(folder)))
    return Outcome(simulation, findings, peaks, page)


def _executed(
    request: RunRequest, ranks: RankGather, shown: "Progress", *, force: bool
) -> "tuple[FinishedRun, CheckpointFolder | None, dict[ClosedFormKey, ClosedForm]]":
    """Resolve and execute a request; return the run, its checkpoints, and closed forms that partial results know."""
    from nadi.reports.run_folder import PartialResults
    from nadi.simulation.resolving import Resolver
    from nadi.simulation.run import execute

    config, resumes = request.config, request.resumed_from is not None
    resolver = Resolver(config, ranks, force=force)
    plan = resolver.plan(shown, has_folder=request.folder is not None, resumes=resumes)
    for warning in plan.model_warnings if ranks.rank == 0 else ():
        shown.warn(warning)
    if not plan.identity or request.folder is None:
        return execute(plan, shown), None, {}
    from nadi.launching.checkpoints import CheckpointFolder

    with together(ranks):
        kept = request.folder, plan.checkpoint_s, request.resumed_from, request.arguments, shown.say
        checkpoints = CheckpointFolder(*kept)
        checkpoints.identify(plan.identity)
        if ranks.rank == 0:
            checkpoints.clear()
            checkpoints.check_parts()
    partial = PartialResults(checkpoints, shown.say)
    return execute(plan, shown, checkpoints, partial.write), checkpoints, partial.closed_forms

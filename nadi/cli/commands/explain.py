"""`nadi explain`: the critical path of a run and its bounds."""

import typer

from nadi.cli.options import AsJson, Quiet, RunFolder
from nadi.cli.output import print_document


def explain(
    folder: RunFolder,
    faster: float = typer.Option(1.1, min=1.0, max=100.0, metavar="TIMES", help="Speed-up factor of each `what if`."),
    job: str = typer.Option("", metavar="NAME", help="Job of [[jobs]] to explain. Default: the last to end."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the critical path of a run across NPUs, the bound of each piece, and which changes would shorten the run."""
    from nadi.insight.explanation import explain as explained
    from nadi.insight.runs import Run
    from nadi.launching.progress import progress
    from nadi.reports.text.run import explanation_report

    with progress(quiet=quiet) as shown:
        document = explained(Run(folder), faster, shown.begin, job)
    print_document(document, explanation_report, as_json=as_json)

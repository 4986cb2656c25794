"""`nadi trace show`: print the contents of a trace or a trace set."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson
from nadi.cli.output import print_document


def show(
    file: Path = typer.Argument(metavar="FILE|DIR", help="Trace NAME.<npu>.et or .et.gz, or folder of a trace set."),
    as_json: AsJson = False,
) -> None:
    """Show counts by type, bytes by collective, dependencies and first nodes of a trace, or the traces of a set."""
    from nadi import et
    from nadi.reports.text.trace import set_report, trace_report
    from nadi.workload.trace_sets import describe_set, is_set

    if is_set(file):
        print_document(describe_set(file), set_report, as_json=as_json)
    else:
        print_document(et.describe(file), trace_report, as_json=as_json)

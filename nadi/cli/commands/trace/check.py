"""`nadi trace check`: find errors in traces."""

from pathlib import Path

import typer

from nadi.cli.options import AsJson, named_path
from nadi.cli.output import print_json, print_table
from nadi.errors import ConfigError
from nadi.inputs.limits import MAX_NPUS
from nadi.launching.ending import unwound

_PATH = "Trace set or folder of plain traces; DIR/NAME for NAME.<npu>.et; or a single file."
_GROUPS = "Group file. Default: groups.json or NAME.json beside the traces."
_MORE = "Further check, in a file of yours; may be repeated."
_OUT = "Folder for fixed traces."


def check(
    path: Path = typer.Argument(metavar="DIR|PREFIX|FILE", help=_PATH),
    groups: Path | None = typer.Option(None, "--groups", metavar="FILE", help=_GROUPS),
    npus: int | None = typer.Option(None, "--npus", min=1, max=MAX_NPUS, help="Expected number of NPUs."),
    most: int = typer.Option(5, "--most", min=0, max=100, help="Maximum number of lines per kind of finding."),
    more: list[str] = typer.Option([], "--check", metavar="FILE.py", show_default=False, help=_MORE),
    as_json: AsJson = False,
    strict: bool = typer.Option(False, "--strict", help="Exit with code 2 for warnings too."),
    fix: bool = typer.Option(False, "--fix", help="Write fixed traces to -o, and check these."),
    out: Path | None = typer.Option(None, "-o", "--out", metavar="DIR", parser=named_path, help=_OUT),
) -> None:
    """Check traces: errors, which a run refuses, warnings and notes. Exit code 2 if there are errors."""
    from nadi.et.checking import WARNING
    from nadi.et.checks import check_traces
    from nadi.reports.text.trace import check_report
    from nadi.workload.program import sources_of, write_mended

    if fix != (out is not None):
        raise ConfigError(f"{'--fix' if fix else '-o'}: found alone; expected --fix and -o DIR together")
    with unwound():
        sources = sources_of(path, groups=groups, npus=npus)
        mends = None
        if out is not None:
            mends = write_mended(sources, out)
            fixed = out if path.is_dir() else out / path.name
            sources = sources_of(fixed, groups=groups, npus=npus)
        report = check_traces(sources, files=more)
    if as_json:
        described = report.described(most)
        if mends is not None:
            described["mends"] = [
                {"what": m.what, "count": m.count, "examples": [e._asdict() for e in m.examples[:most]]} for m in mends
            ]
        print_json(described)
    else:
        print_table(check_report(report, most, mends))
    if not report.is_clean or (strict and report.count(WARNING)):
        raise typer.Exit(2)

"""`nadi doctor`: does this machine have what a run needs?"""

import json

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check Python, packages, the JIT and its cache, cores, memory and MPI; say how to mend what is not well."""
    from nadi import __version__
    from nadi.diagnosis import diagnose

    findings = []
    for finding in diagnose():
        findings.append(finding._asdict())
        if not as_json:
            fix = f"; {finding.fix}" if not finding.ok else ""
            typer.echo(f"{'ok  ' if finding.ok else 'warn'}  {finding.what}: {finding.found}{fix}")
    if as_json:
        typer.echo(json.dumps({"version": __version__, "checks": findings}, indent=2))

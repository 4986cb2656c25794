"""`nadi doctor`: check whether this machine meets the requirements of a run."""

import json

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    compile_only: bool = typer.Option(
        False, "--compile", help="Only compile the kernels that runs need into the cache."
    ),
) -> None:
    """Check Python, packages, the JIT and its cache, cores, memory and MPI, and print a fix for each problem."""
    from nadi import __version__
    from nadi.cli.diagnosis import compile_kernels, diagnose
    from nadi.terminal.tables import console

    if compile_only:
        found = compile_kernels()
        typer.echo(json.dumps(found) if as_json else f"kernels in {found['cache']}: {found['compile_s']:.1f} s")
        return
    findings, out = [], console()
    for finding in diagnose():
        findings.append(finding._asdict())
        if not as_json:
            fix = f"; {finding.fix}" if not finding.ok else ""
            out.print(f"{'ok  ' if finding.ok else 'warn'}  {finding.what}: {finding.found}{fix}")
    if as_json:
        typer.echo(json.dumps({"version": __version__, "checks": findings}, indent=2))

"""`nadi doctor`: check whether this machine meets the requirements of a run."""

import json

import typer

from nadi.cli.options import AsJson
from nadi.cli.output import print_json, print_table

_COMPILE = "Only compile the kernels that runs need into the cache."


def doctor(as_json: AsJson = False, compile_only: bool = typer.Option(False, "--compile", help=_COMPILE)) -> None:
    """Check Python, packages, the JIT and its cache, cores, memory and MPI, and print a fix for each problem."""
    from nadi import __version__
    from nadi.cli.diagnosis import compile_kernels, diagnose

    if compile_only:
        kernels = compile_kernels()
        typer.echo(json.dumps(kernels) if as_json else f"kernels in {kernels['cache']}: {kernels['compile_s']:.1f} s")
        return
    findings = []
    for finding in diagnose():
        findings.append(finding._asdict())
        if not as_json:
            fix = f"; {finding.fix}" if not finding.ok else ""
            print_table(f"{'ok  ' if finding.ok else 'warn'}  {finding.what}: {finding.found}{fix}")
    if as_json:
        print_json({"version": __version__, "checks": findings})

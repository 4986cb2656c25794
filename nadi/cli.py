"""The command line: finds the commands, runs one, and turns every failure into one line and an exit code.

Exit codes: 0 done; 2 the user's input is wrong; 1 the run failed; 130 interrupted, 143 and 129 ended by SIGTERM and
SIGHUP. An exception says its own code in an attribute `exit_code`; any other exception is a defect of Nadi and ends
with code 1.
"""

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from nadi import __version__, commands
from nadi.ending import end_others, let_first_end, speaker, speaks

INTERRUPTED = 130
FAILED = 1


def build_app() -> typer.Typer:
    """The application with every module of nadi/commands, in alphabetical order."""
    app = typer.Typer(
        name="nadi",
        help="Packet-level simulation of distributed AI training, driven by Chakra execution traces.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda found: found.name):
        importlib.import_module(f"{commands.__name__}.{module.name}").register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; None = those of the process.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(build_app())
    try:
        outcome = command.main(args=arguments, prog_name="nadi", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - the outermost frame: nothing is above to handle it
        code = _report(error) if speaks(error) else int(getattr(error, "exit_code", FAILED))
        end_others(error, code)
        return code
    if outcome == INTERRUPTED:  # typer turns KeyboardInterrupt into this
        let_first_end()
        interrupt = KeyboardInterrupt()
        end_others(interrupt, _report(interrupt))
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def entry_point() -> None:
    """The console script `nadi`."""
    sys.exit(main())


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"nadi {__version__}")
        raise typer.Exit


def _options(
    *,
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """Options of `nadi` itself; typer asks for a function that takes them."""


def _report(error: BaseException) -> int:
    """Print an error as one line (a stalled run adds who waits for whom) and give its exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        _say("interrupted", error)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the final flush has nowhere to go
        return FAILED
    code = getattr(error, "exit_code", None)
    if code is None:
        return _report_defect(error)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if code == 2 and text:
        text = " ".join(text.split())
    if text:
        _say(text, error)
    return int(code)


def _report_defect(error: BaseException) -> int:
    if os.environ.get("NADI_DEBUG"):
        traceback.print_exception(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    _say(f"{type(error).__name__}: {text}{where}; this is a defect, NADI_DEBUG=1 shows the traceback", error)
    return FAILED


def _say(text: str, error: BaseException) -> None:
    print(f"nadi: error: {speaker(error)}{text}", file=sys.stderr)  # noqa: T201 - errors go to the terminal

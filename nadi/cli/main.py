"""Entry point of the command line: runs one command, and turns every failure into one line and an exit code.

Exit codes: 0 success; 2 invalid input; 1 failed run; 130 interrupted, 143 and 129 ended by SIGTERM and SIGHUP. An
exception has its exit code in an attribute `exit_code`; an OSError is not Nadi's fault: 1 for a full device, else 2;
any other exception is a defect of Nadi and ends with code 1.
"""

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from nadi.compiling import defect_text
from nadi.errors import exit_code_of
from nadi.inputs.files import shown
from nadi.launching.ending import INTERRUPTED, Interrupts, end_others, error_prefix, prints_error, wait_for_rank_0
from nadi.terminal.printing import never_fail_to_print

FAILED = 1
WRONG_INPUT = 2
# Words that messages shorten: longer than paths in practice, but not than a number of 5,000 digits
_LONG_WORD = re.compile(r"\S{400,}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; arguments: None = those of the process."""
    try:
        outcome = _run(arguments)
        Interrupts.check()
    except BaseException as error:  # noqa: BLE001 - the outermost frame handles everything
        return _end(Interrupts.pending or error)
    return outcome


def entry_point() -> NoReturn:
    """Run the console script `nadi`, and end the process."""
    try:
        Interrupts.heed()
        code = main()
    except KeyboardInterrupt as interrupt:
        code = _end(interrupt)
    Interrupts.ignore()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # a closed pipe after a reported error: Python would report it again
        _discard_output()
    sys.exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    """Run one command with these arguments, or those of the process, and return its exit code."""
    never_fail_to_print()
    from nadi.cli.app import command_line

    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    outcome = command_line().main(args=arguments, prog_name="nadi", standalone_mode=False)
    if outcome == INTERRUPTED:  # typer turns KeyboardInterrupt into this
        raise KeyboardInterrupt
    sys.stdout.flush()  # a full device fails here instead of at the exit of Python
    return outcome if isinstance(outcome, int) else 0


def _end(error: BaseException) -> int:
    """Print the error, end the other ranks, and return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        wait_for_rank_0()
    silent = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    if hasattr(error, "exit_code"):
        silent = exit_code_of(error)
    code = _report(error) if prints_error(error) else silent
    end_others(error, code)
    return code


def _report(error: BaseException) -> int:
    """Print an error as one line (a stalled run adds the waiting nodes) and return its exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":  # typer's, maybe not imported yet
        _say("interrupted", error)
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return FAILED
    if not hasattr(error, "exit_code"):
        return _report_other(error)
    code = exit_code_of(error)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if text:
        # Names lose their line feeds; those of a failed run stay before the indented entries of a list
        entries = [text] if code == WRONG_INPUT else text.split("\n  ")
        _say("\n  ".join(" ".join(entry.split()) for entry in entries), error)
    return code


def _report_other(error: BaseException) -> int:
    """Report an unexpected error: a failed file or device, exhausted memory, or a defect."""
    import traceback

    if os.environ.get("NADI_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.errno is not None:
        if error.filename is None:
            _discard_output()  # the file without a name is standard output, which Python would flush again
        name = "standard output" if error.filename is None else os.fsdecode(error.filename)
        _say(shown(f"{name}: {error.strerror}"), error)
        return FAILED if error.filename is None else exit_code_of(error)
    if isinstance(error, MemoryError):
        _say(f"out of memory {error}".rstrip(), error)
        return FAILED
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    _say(f"{defect_text(error)}{where}; this is a defect, NADI_DEBUG=1 shows the traceback", error)
    return FAILED


def _discard_output() -> None:
    """Redirect standard output to the null device, so that Python's final flush succeeds."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, error: BaseException) -> None:
    """Print an error on standard error, with long words shortened."""
    shortened = _LONG_WORD.sub(lambda word: f"{word[0][:60]}...{word[0][-20:]}", text)
    with suppress(OSError):  # standard error may be unusable too
        sys.stderr.write(f"nadi: error: {error_prefix(error)}{shown(shortened, lines=True)}\n")
        sys.stderr.flush()

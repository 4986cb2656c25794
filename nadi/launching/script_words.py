"""Quoting of user-given names for batch scripts; every such name passes through this module.

A name may contain a line feed, which would end a comment or a directive and begin a command, or characters that a shell
or SLURM interprets. Each function raises ConfigError for a name that is not one line of printable characters, such as
one with a control character or a byte that is not UTF-8, and quotes all others.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from nadi.errors import ConfigError
from nadi.launching.python import nadi_command

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:=+@/%-]*")
_OPTION = re.compile(r"([a-z][a-z0-9-]*)(?:=.+)?")


def one_line(text: str) -> str:
    """Return the text if it is one line of printable characters."""
    if not text.isprintable():
        raise ConfigError(f"{text!r}: expected a single line of printable characters, as it goes into a batch script")
    return text


def shell_word(text: str) -> str:
    """Return the text quoted as one word of a shell."""
    return shlex.quote(one_line(text))


def shell_line(words: Iterable[str]) -> str:
    """Return a command line of these words, each quoted."""
    return " ".join(shell_word(word) for word in words)


def nadi_line(words: Sequence[str]) -> str:
    """Return the command line that runs `nadi` with these arguments by the Python that runs now.

    Args:
        words: The arguments of `nadi`, without quotes.
    """
    return shell_line(nadi_command(words))


def directive(option: str) -> str:
    """Return the #SBATCH line of an option "qos=high" or "exclusive", with its value quoted as sbatch reads quotes."""
    name, equals, value = one_line(option).partition("=")
    if not _PLAIN_VALUE.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        value = f'"{escaped}"'
    return f"#SBATCH --{name}{equals}{value}"


def rendered(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """Return the batch script of a template, whose filters quote what is put in.

    Args:
        template: The name of the template, a file of templates/slurm.
        values: Values of the template by name.
    """
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - it makes a shell script, quoted for the shell, and no HTML
        loader=jinja2.PackageLoader("nadi.launching", "templates/slurm"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "quote": shell_word,
        "shell_line": shell_line,
        "directive": directive,
        "nadi_line": nadi_line,
    }
    environment.filters["settings"] = lambda overrides: shell_line(
        word for override in overrides for word in ("--set", override)
    )
    return environment.get_template(template).render(**values)


def log_path(folder: str, pattern: str) -> str:
    """Return a value of --output: a path that is taken literally, and behind it a pattern of SLURM such as "-%a.log".

    A path with a backslash raises ConfigError, because SLURM replaces no pattern after one.

    Args:
        folder: The path that is taken literally.
        pattern: The end of the path, with patterns of SLURM.
    """
    if "\\" in folder:
        raise ConfigError(f"{folder!r}: found a backslash; expected a path without one, for the --output of SLURM")
    return folder.replace("%", "%%") + pattern


def sbatch_options(options: Sequence[str], own: Iterable[str]) -> tuple[str, ...]:
    """Return checked values of --sbatch, as "qos=high" or "exclusive"; ConfigError for options that the script sets.

    Args:
        options: The values of --sbatch as users wrote them.
        own: Options that the script sets itself.
    """
    for option in options:
        parts = _OPTION.fullmatch(one_line(option))
        if parts is None:
            raise ConfigError(f"--sbatch {option!r}: expected an option of sbatch without its dashes, as qos=high")
        if parts[1] in own:
            raise ConfigError(f"--sbatch {option!r}: the script sets --{parts[1]} itself; expected another option")
    return tuple(options)

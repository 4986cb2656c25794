"""Formats of traces that Nadi can read or write: files of this folder, of installed packages and of users.

The name of a format for `nadi trace convert`, such as "json" (`--from json`, `--to json`), is that of its file.

A file has

- TITLE: description for lists and messages, such as "a Chakra trace as JSON";
- OPTIONS: description of each option by name, for `--from NAME:option=value,...`; optional.

If the format can be read:

- `recognises(path: Path) -> bool`: whether a file or folder has this format, by its first bytes or its names;
- `read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables`.

If the format can be written:

- `names(traces: TraceTables, prefix: str) -> list[str]`: files that `write` makes, with the one that must appear last
  at the end; it reads no trace;
- `write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None`: writes into an existing,
  empty folder, trace by trace, so that many traces need no more memory than one.

Both raise TraceError, one line: file, the value found, and the expected one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from nadi import inputs
from nadi.et.errors import TraceError
from nadi.inputs import plug_ins

_KIND = "trace format"


def formats() -> dict[str, Any]:
    """Return every format by its name, without those in files of the user's."""
    return {name: plug_ins.module(_KIND, name, TraceError) for name in plug_ins.names(_KIND)}


def _that_can(verb: Literal["read", "write"]) -> dict[str, Any]:
    """Return the formats that can be read or written."""
    return {name: module for name, module in formats().items() if hasattr(module, verb)}


def format_of(path: Path) -> str:
    """Return the name of the format of a file or folder. Raises TraceError: no format recognises it.

    Args:
        path: The path of the file or folder.
    """
    readable = _that_can("read")
    for name, module in readable.items():
        if module.recognises(path):
            return name
    expected = f"one of: {'; '.join(f'{name} ({module.TITLE})' for name, module in readable.items())}"
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, expected))
    found = "a file of unknown kind" if path.exists() else "no such file or folder"
    raise TraceError(f"{path}: {found}, expected {expected}")


def chosen(text: str, verb: Literal["read", "write"], option: str) -> tuple[str, Any, dict[str, str]]:
    """Return name, module and options of a format. Raises TraceError: it is unknown, or lacks the verb or an option.

    Args:
        text: The format as users write it, NAME:option=value,...; NAME may be the path of a file.
        verb: The ability that the format must have.
        option: The command's option, --from or --to, for errors.
    """
    name, _, rest = text.partition(":")
    known_formats = _that_can(verb)
    if name not in known_formats and not plug_ins.is_file(_KIND, name):
        raise TraceError(f"{option} {name!r}: expected one of {', '.join(known_formats)}, or a file NAME.py")
    module = plug_ins.module(_KIND, name, TraceError)
    if not hasattr(module, verb):
        raise TraceError(f"{option} {name}: no {verb}; expected a trace format that has one")
    allowed: Mapping[str, str] = getattr(module, "OPTIONS", {})
    options: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in allowed or not equals or not value or key in options:
            expected = f"each once as option=value, of {', '.join(allowed)}" if allowed else "no options"
            raise TraceError(f"{option} {text}: found {part!r}, expected {expected}")
        options[key] = value
    return name, module, options

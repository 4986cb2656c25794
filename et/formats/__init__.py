"""Formats of traces that Nadi can read or write; every file in this folder is a format.

A file has

- NAME: name of the format for `nadi trace convert`, such as "json" (`--from json`, `--to json`);
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

Both raise TraceError, one line: file, what was found, what was expected.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import inputs
from et.errors import TraceError


def formats() -> dict[str, ModuleType]:
    """Return every format by its name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.NAME: module for module in sorted(modules, key=lambda module: str(module.NAME))}


def readable() -> dict[str, ModuleType]:
    """Return the formats that can be read."""
    return {name: module for name, module in formats().items() if hasattr(module, "read")}


def writable() -> dict[str, ModuleType]:
    """Return the formats that can be written."""
    return {name: module for name, module in formats().items() if hasattr(module, "write")}


def format_of(path: Path) -> ModuleType:
    """Return the format of a file or folder; raise TraceError if no format recognises it."""
    for module in readable().values():
        if module.recognises(path):
            return module
    expected = f"one of: {'; '.join(f'{name} ({module.TITLE})' for name, module in readable().items())}"
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, expected))
    found = "a file of unknown kind" if path.exists() else "no such file or folder"
    raise TraceError(f"{path}: {found}, expected {expected}")


def chosen(text: str, known_formats: Mapping[str, ModuleType], option: str) -> tuple[ModuleType, dict[str, str]]:
    """Return a format and its options from NAME or NAME:option=value,...; errors name `option`, --from or --to."""
    name, _, rest = text.partition(":")
    if name not in known_formats:
        raise TraceError(f"{option} {name!r}: expected one of {', '.join(known_formats)}")
    allowed: Mapping[str, str] = getattr(known_formats[name], "OPTIONS", {})
    options: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in allowed or not equals or not value or key in options:
            expected = f"each once as option=value, of {', '.join(allowed)}" if allowed else "no options"
            raise TraceError(f"{option} {text}: found {part!r}, expected {expected}")
        options[key] = value
    return known_formats[name], options

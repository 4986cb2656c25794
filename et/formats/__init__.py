"""Traces of other kinds, read and written: one file each, found by looking into this folder.

A file holds

- NAME: what `nadi trace convert` calls the format, "json" (`--from json`, `--to json`);
- TITLE: what it is, for lists and messages, "a Chakra trace as JSON";
- OPTIONS: by name what each is, for `--from NAME:option=value,...`; may be left out where there are none.

If it can be read,

- `recognises(path: Path) -> bool`: whether a file or folder is of this kind, told by its first bytes or its names;
- `read(paths: Sequence[Path], options: Mapping[str, str]) -> TraceTables`.

If it can be written,

- `names(traces: TraceTables, prefix: str) -> list[str]`: files that `write` makes, the one that is to appear last
  at the end; no trace is read for it;
- `write(traces: TraceTables, folder: Path, prefix: str, options: Mapping[str, str]) -> None`: into a folder that is
  there and empty; one trace at a time, so that many need no more memory than one.

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
    """Every format by its name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.NAME: module for module in sorted(modules, key=lambda module: str(module.NAME))}


def readable() -> dict[str, ModuleType]:
    """Formats that can be read."""
    return {name: module for name, module in formats().items() if hasattr(module, "read")}


def writable() -> dict[str, ModuleType]:
    """Formats that can be written."""
    return {name: module for name, module in formats().items() if hasattr(module, "write")}


def format_of(path: Path) -> ModuleType:
    """The format of a file or folder.

    Raises:
        TraceError: no format knows it.
    """
    for module in readable().values():
        if module.recognises(path):
            return module
    expected = f"one of: {'; '.join(f'{name} ({module.TITLE})' for name, module in readable().items())}"
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, expected))
    found = "no kind of file that is known" if path.exists() else "no such file or folder"
    raise TraceError(f"{path}: {found}, expected {expected}")


def chosen(text: str, known: Mapping[str, ModuleType], option: str) -> tuple[ModuleType, dict[str, str]]:
    """A format and its options, of the text NAME or NAME:option=value,...

    Args:
        text: what the user wrote.
        known: `readable()` or `writable()`.
        option: where, for messages: "--from".

    Raises:
        TraceError: no such format or option, or an option twice or without a value.
    """
    name, _, rest = text.partition(":")
    if name not in known:
        raise TraceError(f"{option} {name!r}: expected one of {', '.join(known)}")
    allowed: Mapping[str, str] = getattr(known[name], "OPTIONS", {})
    options: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in allowed or not equals or not value or key in options:
            expected = f"each once as option=value, of {', '.join(allowed)}" if allowed else "no options"
            raise TraceError(f"{option} {text}: found {part!r}, expected {expected}")
        options[key] = value
    return known[name], options

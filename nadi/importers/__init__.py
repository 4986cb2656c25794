"""Configurations of other simulators, read unchanged and translated to the sections of a run file.

Each importer is a module or a folder with functions that return `FileSections` for each kind of file: sections of a run
file, and the keys that have no effect here. The commands of `nadi.cli` then run the sections as `nadi run` runs a file.
The page docs/reference/peers.md lists what each key means here.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Sections = Mapping[str, Any]  # sections of a run file by name, each a mapping of keys to values


class TranslatedRun(NamedTuple):
    """A run of another simulator's files as a run of Nadi."""

    sections: dict[str, Any]  # sections of a run file
    warnings: tuple[str, ...] = ()  # sentences about differences
    warns: bool = True  # whether a warning names keys of the sections without effect; else only those of options
    overrides: tuple[str, ...] = ()  # keys that options name, "section.key=value", as --set has them
    before_report: Callable[..., None] | None = None  # prints lines, of a FinishedRun; `err`: on standard error
    run_file: Path | None = None  # run file to write, in place of a run
    origin: str = ""  # sentence about the files, for the run file


class FileSections(NamedTuple):
    """Contribution of one file of another simulator."""

    sections: Sections  # sections of a run file
    unused: tuple[str, ...] = ()  # keys of the file that have no effect here, and phrases about other differences


def warning(parts: Iterable[tuple[str, FileSections]]) -> str:
    """Return one sentence that names the keys without effect, by label of their file; "" if there are none."""
    texts = [f"{label}: {', '.join(part.unused)}" for label, part in parts if part.unused]
    return f"without effect here: {'; '.join(texts)}" if texts else ""

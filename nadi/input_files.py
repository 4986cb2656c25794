"""The files that a configuration reads, and hashes of them. The keys declare which they are (nadi/named_files.py)."""

import hashlib
import os
import stat
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

import inputs
from nadi.config import RunConfig
from nadi.named_files import Change, NamesFiles

MOST_HASHED_BYTES = 1 << 30
"""The contents of larger files of one path are not read a second time: reading 1 GiB takes about a second."""


class InputFiles(NamedTuple):
    """The files that a run reads because a key names a path.

    Attributes:
        key: Section and key, "topology.file".
        path: The path in the settled configuration.
        files: All files that a run reads for it.
        bytes: Size of the regular files among them.
        sha256: Hash of the names and contents of the regular files; beyond MOST_HASHED_BYTES, of their names, sizes
            and times of change. Empty if there are none, as of a pipe.
    """

    key: str
    path: str
    files: tuple[Path, ...]
    bytes: int
    sha256: str

    def document(self) -> dict[str, Any]:
        """For JSON, with the number of files in place of their names."""
        return self._asdict() | {"files": len(self.files)}


Known = MutableMapping[tuple[str, str], InputFiles]
"""Files that were hashed before, by key and path."""


def files_read(config: RunConfig, known: Known | None = None) -> list[InputFiles]:
    """List the user's files that a run of a configuration reads, with hashes.

    Args:
        config: Settled configuration.
        known: Files that an earlier call hashed, which are not read again; this call adds its own.

    Returns:
        One entry per path that the configuration names and that is there, in the order of sections and keys.
    """
    known = {} if known is None else known
    found = []
    for name, section in _sections(config):
        for key, marker in naming_keys(type(section)).items():
            for path in _paths(getattr(section, key), marker):
                place = f"{name}.{key}", path
                if place not in known:
                    known[place] = _hashed(*place, marker)
                found.append(known[place])
    return [entry for entry in found if entry.files]


def changed_paths(config: RunConfig, change: Change) -> RunConfig:
    """Return the configuration with each path that it names changed."""
    sections = {}
    for name, section in _sections(config):
        keys = naming_keys(type(section))
        changed = {key: marker.change(getattr(section, key), change) for key, marker in keys.items()}
        sections[name] = section.model_copy(update=changed) if changed else section
    return config.model_copy(update=sections)


def naming_keys(section: type[BaseModel]) -> dict[str, NamesFiles]:
    """Return the keys of a section that name files, with their declarations."""
    return {
        key: marker
        for key, field in section.model_fields.items()
        for marker in field.metadata
        if isinstance(marker, NamesFiles)
    }


def _sections(config: RunConfig) -> Iterator[tuple[str, BaseModel]]:
    for name in type(config).model_fields:
        section = getattr(config, name)
        if isinstance(section, BaseModel):
            yield name, section


def _paths(value: object, marker: NamesFiles) -> list[str]:
    """Return the paths in a value, each once; of names of a library, the path that a file of that name would have."""
    found: list[str] = []

    def note(path: str) -> str:
        found.append(path)
        return path

    marker.change(value, note)
    return list(dict.fromkeys(found))


def _hashed(key: str, path: str, marker: NamesFiles) -> InputFiles:
    """Hash the files of a path. What is missing is left out: the run says what is wrong with it."""
    status = {file: _status(file) for file in marker.files(Path(path))}
    files = {file: found for file, found in status.items() if found is not None and not stat.S_ISDIR(found.st_mode)}
    regular = sorted((file, found) for file, found in files.items() if stat.S_ISREG(found.st_mode))
    size_bytes = sum(found.st_size for _, found in regular)
    made = hashlib.sha256()
    for file, found in regular:
        made.update(os.fsencode(file.name) + f"\0{found.st_size}\0".encode())
        for piece in _content(file) if size_bytes <= MOST_HASHED_BYTES else [str(found.st_mtime_ns).encode()]:
            made.update(piece)
    return InputFiles(key, path, tuple(files), size_bytes, made.hexdigest() if regular else "")


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except (OSError, ValueError):
        return None


def _content(file: Path) -> Iterator[bytes]:
    try:
        yield from inputs.pieces(file)
    except OSError:
        return

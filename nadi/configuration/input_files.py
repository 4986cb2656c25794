"""Files that a configuration reads, and their hashes; `values.NamesFiles` declares which keys name files."""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.configuration.run_config import RunConfig
from nadi.configuration.values import NamesFiles, naming_keys
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from nadi.workload import Exchange, alone

MAX_HASHED_BYTES = 1 << 30
"""Maximum size in bytes of the files of one path whose contents are hashed: reading 1 GiB again takes about a
second."""


class InputFiles(NamedTuple):
    """Files that a run reads because a key names a path."""

    key: str  # section and key, "topology.file"
    path: str  # path in the settled configuration
    files: tuple[Path, ...]  # all files that a run reads for it
    bytes: int  # size of the regular files among them in bytes
    # hash of the names and contents of the regular files; above MAX_HASHED_BYTES, of their names, sizes and
    # modification times. Empty if there are no regular files, as for a pipe
    sha256: str

    def document(self) -> dict[str, Any]:
        """Return the entry for JSON, with the number of files instead of their names."""
        return self._asdict() | {"files": len(self.files)}


Known = MutableMapping[tuple[str, str], InputFiles]  # files that were already hashed, by key and path


def files_read(
    config: RunConfig,
    known_files: Known | None = None,
    exchange: Exchange = alone,
    may_open: Callable[[Path], bool] = lambda _: True,
) -> list[InputFiles]:
    """List the user's files that a run of a configuration reads, with hashes, in the order of sections and keys.

    `known_files` were hashed before and are not read again; this call adds its own. Every rank calls this function with
    its `exchange`, and all get the same result; `may_open` says whether this rank may open a file, and one rank may.
    """
    known_files = {} if known_files is None else known_files
    named = [
        (f"{name}.{key}", path, marker)
        for name, section in config.named_sections()
        for key, marker in naming_keys(type(section)).items()
        for path in _paths(getattr(section, key), marker)
    ]
    new = {
        (key, path): _existing_files(path, marker)
        for key, path, marker in named
        if (key, path) not in known_files or _loaded(Path(path))
    }
    files = {file for found in new.values() for file in found.hashed if _loaded(file) or may_open(file)}
    own = {str(file): _loaded(file) or _content_hash(file) for file in sorted(files)}
    hashes: dict[str, str] = {}
    for part in exchange(own):
        for name, content in part.items():
            if hashes.setdefault(name, content) != content:
                raise ConfigError(f"{name}: ranks have read different contents; expected one file")
    known_files.update({(key, path): files.entry(key, path, hashes) for (key, path), files in new.items()})
    entries = [known_files[key, path] for key, path, _ in named]
    return [entry for entry in entries if entry.files]


def _paths(value: object, declaration: NamesFiles) -> list[str]:
    """Return the distinct paths in a value; for names of a library, the path that a file of that name would have."""
    paths: list[str] = []

    def note(path: str) -> str:
        paths.append(path)
        return path

    declaration.change(value, note)
    return list(dict.fromkeys([*paths, *map(str, declaration.installed(value))]))


class _Files(NamedTuple):
    """Existing files of a path."""

    every: dict[Path, os.stat_result]  # all files, with their status
    regular: list[Path]  # regular files among them, sorted
    bytes: int  # size of the regular files in bytes

    @property
    def hashed(self) -> list[Path]:
        """Return the files whose contents are hashed."""
        return self.regular if self.bytes <= MAX_HASHED_BYTES else []

    def entry(self, key: str, path: str, hashes: Mapping[str, str]) -> InputFiles:
        """Return the entry of these files; hashes: hashes of contents by path."""
        digest = hashlib.sha256()
        for file in self.regular:
            status = self.every[file]
            digest.update(os.fsencode(file.name))
            digest.update(f"\0{status.st_size}\0{hashes.get(str(file), status.st_mtime_ns)}\0".encode())
        return InputFiles(key, path, tuple(self.every), self.bytes, digest.hexdigest() if self.regular else "")


def _existing_files(path: str, declaration: NamesFiles) -> _Files:
    """Return the existing files of a path; the run itself reports missing files."""
    every = {}
    for file in declaration.files(Path(path)):
        with suppress(OSError, ValueError):
            status = file.stat()
            if not stat.S_ISDIR(status.st_mode):
                every[file] = status
    regular = sorted(file for file, status in every.items() if stat.S_ISREG(status.st_mode))
    return _Files(every, regular, sum(every[file].st_size for file in regular))


def _loaded(file: Path) -> str | None:
    """Return the SHA-256 of the code that this process runs, if the file is a plug-in that it has loaded."""
    return plug_ins.LOADED.get(str(file.absolute()))


def _content_hash(file: Path) -> str:
    """Return the SHA-256 of a file's content; "" if it cannot be read."""
    digest = hashlib.sha256()
    try:
        for piece in inputs.pieces(file):
            digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()

"""Plug-ins: Nadi's own, those of installed packages, and files that users name in their place.

A plug-in is a Python module or a TOML file. Nadi's own are in a folder for each kind (`KINDS`), and have the names of
their files, with "-" for "_". An installed package offers plug-ins as entry points of the group `nadi.KIND`, such as

    [project.entry-points."nadi.congestion_control"]
    vegas = "my_package.vegas"
    [project.entry-points."nadi.gpu"]
    h300 = "my_package:h300.toml"

A user's file is named by its path, FILE.py or FILE.toml. A module is code that runs: only files that the user names,
and packages that somebody has installed, are loaded, each when it is needed. No folder is added to `sys.path`.
"""

import difflib
import functools
import hashlib
import importlib
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata, resources, util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from nadi.inputs.errors import InputError
from nadi.inputs.files import LARGEST_TEXT_BYTES, read_bytes

ROOT = Path(__file__).parents[2]
_BEGAN_S = time.time()
LOADED: dict[str, str] = {}  # SHA-256 of the source that this process runs, by the path of a plug-in from outside
_DEFINED = re.compile(r"^(?:def |class )?+(\w++)", re.MULTILINE)  # names at the begin of a line
_MAX_CHARACTERS = 400  # of the description of an error in a plug-in


class PlugInError(InputError):
    """A plug-in is unknown or wrong: one line."""


class Kind(NamedTuple):
    """A kind of plug-in."""

    package: str  # of Nadi's own plug-ins
    needs: tuple[str, ...] = ()  # names that a module defines; a file without the first of them is none
    renamed: Mapping[str, str] = {}  # Nadi's own whose name is not that of their file
    built_in: tuple[str, ...] = ()  # names that no file has
    suffix: str = ".py"  # end of the names of files
    beside: tuple[str, ...] = ()  # kinds that users name in the same place, so that no name may be of both


KINDS: Mapping[str, Kind] = {
    "topology": Kind("nadi.topologies.builders", ("Arguments", "build"), beside=("machine", "cluster")),
    # a machine and the cluster of it may share a name, because their parameters differ
    "machine": Kind("nadi.topologies.machines", suffix=".toml", beside=("topology",)),
    "cluster": Kind("nadi.topologies.clusters", suffix=".toml", beside=("topology",)),
    "GPU": Kind("nadi.workload.compute.gpus", suffix=".toml"),
    "model": Kind("nadi.workload.generators.models", suffix=".toml"),
    "pipeline schedule": Kind(
        "nadi.workload.generators.training.pipeline",
        ("Pipeline",),
        {"one-forward-one-backward": "1f1b", "dual-pipe": "dualpipe"},
    ),
    "collective algorithm": Kind("nadi.workload.collectives.algorithms", ("plan", "KINDS")),
    "partition method": Kind("nadi.partition.methods", ("assign",)),
    "trace check": Kind("nadi.et.checks", ("TraceCheck", "LOOKS_FOR")),
    "trace format": Kind("nadi.et.formats", ("TITLE",), {"chakra-json": "json"}),
    "network model": Kind("nadi.pdes.fidelity", ("NETWORK",)),
    "congestion control": Kind(
        "nadi.pdes.nic.congestion", ("update", "TITLE", "SIGNALS", "PARAMETERS"), built_in=("none",)
    ),
    "load balancing": Kind("nadi.pdes.network.balancing", ("pick",), built_in=("ecmp",)),
    "entropy rule": Kind("nadi.pdes.nic.entropy", ("act", "TITLE"), built_in=("fixed",)),
    "routing": Kind("nadi.pdes.network.detours", ("route",), built_in=("minimal",)),
    "switch discipline": Kind("nadi.pdes.network.disciplines", ("pick",), built_in=("strict",)),
    "command": Kind("nadi.cli.commands"),
    "importer": Kind("nadi.cli.importers", ("read",)),
}


@functools.cache
def own_files(kind: str) -> Mapping[str, Path]:
    """Return the files of Nadi's own plug-ins of a kind by name, sorted; none of them is imported."""
    package, needs, renamed, _, suffix, _ = KINDS[kind]
    paths = [path for path in (ROOT / package.replace(".", "/")).glob(f"*{suffix}") if path.stem[0] != "_"]
    own = [path for path in paths if not needs or needs[0] in _DEFINED.findall(path.read_text("utf-8"))]
    named = {path.stem if suffix == ".toml" else path.stem.replace("_", "-"): path for path in own}
    return dict(sorted((renamed.get(name, name), path) for name, path in named.items()))


_entry_points = functools.cache(metadata.entry_points)  # read from a file of each installed package


@functools.cache
def _installed(kind: str) -> Mapping[str, list[metadata.EntryPoint]]:
    """Return the entry points of a kind by name, sorted."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for entry in _entry_points().select(group=f"nadi.{kind.lower().replace(' ', '_')}"):
        found.setdefault(entry.name, []).append(entry)
    return dict(sorted(found.items()))


def installed_names(kind: str) -> list[str]:
    """Return the sorted names of the plug-ins of installed packages.

    Args:
        kind: The kind of plug-in, a key of KINDS.
    """
    return list(_installed(kind))


def names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind, Nadi's own and those of installed packages."""
    return [*KINDS[kind].built_in, *sorted({*own_files(kind), *_installed(kind)})]


def is_file(kind: str, name: str) -> bool:
    """Return whether the name of a plug-in is the path of a user's file.

    Args:
        kind: The kind of plug-in, a key of KINDS.
        name: The name as the user wrote it.
    """
    suffix = KINDS[kind].suffix
    return suffix in name and Path(name).suffix == suffix


def with_path(kind: str, text: str, change_path: Callable[[str], str]) -> str:
    """Return NAME or NAME:parameters with the name changed if it is a path.

    Args:
        kind: The kind of plug-in, a key of KINDS.
        text: The name of a plug-in, with parameters after a colon, if there are any.
        change_path: A function from a path to the path that takes its place.
    """
    name, colon, rest = text.partition(":")
    return change_path(name.strip()) + colon + rest if is_file(kind, name.strip()) else text


def outside_file(kind: str, name: str) -> Path | None:
    """Return the file of a plug-in of an installed package; None for other names.

    Args:
        kind: The kind of plug-in, a key of KINDS.
        name: The name of the plug-in.
    """
    if name in own_files(kind) or name not in _installed(kind):
        return None
    if KINDS[kind].suffix == ".toml":
        return toml_file(kind, name)
    module(kind, name)
    path = sys.modules[_installed(kind)[name][0].module].__file__
    return None if path is None else Path(path)


def toml_file(kind: str, name: str, error: type[Exception] = PlugInError) -> Path:
    """Return the file of a plug-in in TOML; an `error` if its name is unknown or not unique.

    Args:
        kind: The kind of plug-in, a key of KINDS.
        name: The name of the plug-in, or the path of its file.
        error: The class of the error.
    """
    with _raising(error):
        entry = None if is_file(kind, name) else _entry(kind, name)
        if entry is None:
            return own_files(kind).get(name, Path(name))
        try:
            return Path(str(resources.files(entry.module) / entry.attr))
        except Exception as problem:
            raise _wrong(_label(kind, entry), problem, kind) from problem


def module(kind: str, name: str, error: type[Exception] = PlugInError) -> Any:  # noqa: ANN401 - what an entry point names
    """Return the module of a plug-in; an `error` if its name is unknown or not unique, or it is none of this kind."""
    with _raising(error):
        return _module(kind, name)


def own_module(kind: str, name: str) -> Any:  # noqa: ANN401 - a module
    """Return the module of a plug-in of Nadi's own, whatever packages call theirs.

    Args:
        kind: The kind of plug-in, a key of KINDS.
        name: The name of the plug-in, a key of `own_files`.
    """
    return importlib.import_module(f"{KINDS[kind].package}.{own_files(kind)[name].stem}")


@contextmanager
def _raising(error: type[Exception]) -> Iterator[None]:
    """Raise each PlugInError as an `error`."""
    try:
        yield
    except PlugInError as problem:
        raise error(str(problem)) from problem.__cause__


def _module(kind: str, name: str) -> Any:  # noqa: ANN401 - what an entry point names
    """Return the module of a plug-in; PlugInError as `module`."""
    if is_file(kind, name):
        label, found = name, _module_of_file(kind, Path(name).absolute())
    else:
        entry = _entry(kind, name)
        if entry is None:
            return own_module(kind, name)
        label = _label(kind, entry)
        try:
            found = entry.load()
        except Exception as error:
            raise _wrong(label, error, kind) from error
        _note_source(sys.modules[entry.module])
    missing = [needed for needed in KINDS[kind].needs if not hasattr(found, needed)]
    if missing:
        raise PlugInError.at(label, f"no {missing[0]}", _expected(kind))
    return found


def _entry(kind: str, name: str) -> metadata.EntryPoint | None:
    """Return the entry point of a name, None for Nadi's own; PlugInError if the name is unknown, or several have it."""
    owners = {each: list(_owners(each, name)) for each in (kind, *KINDS[kind].beside)}
    if not owners[kind]:
        near = difflib.get_close_matches(name, names(kind), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = f"{', '.join(names(kind))}, or the path of a file NAME{KINDS[kind].suffix}"
        raise PlugInError(f"unknown {kind} {name!r}; {hint}known: {known}")
    found = [text + f" ({each})" * (each != kind) for each, texts in owners.items() for text in texts]
    if len(found) > 1:
        raise PlugInError(f"{kind} {name!r}: found in {' and '.join(found)}; expected one of this name")
    return next(iter(_installed(kind).get(name, [])), None)


def _owners(kind: str, name: str) -> Iterator[str]:
    """Yield who has a plug-in of a kind and name, as texts: "Nadi", and packages."""
    if name in own_files(kind) or name in KINDS[kind].built_in:
        yield "Nadi"
    yield from map(_package, _installed(kind).get(name, []))


def _package(entry: metadata.EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _label(kind: str, entry: metadata.EntryPoint) -> str:
    return f"{kind} {entry.name!r} of {_package(entry)}"


def _expected(kind: str) -> str:
    """Return what a file must be, in words."""
    needs = KINDS[kind].needs
    return f"a {kind} with {' and '.join(filter(None, (', '.join(needs[:-1]), needs[-1])))}" if needs else f"a {kind}"


def _wrong(label: object, error: BaseException, kind: str) -> PlugInError:
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", _MAX_CHARACTERS, placeholder=" ...")
    return PlugInError(f"{label}: {reason}; expected {_expected(kind)}")


def _module_of_file(kind: str, path: Path) -> ModuleType:
    """Return the module of a user's file, loaded again if its content has changed."""
    try:
        source = read_bytes(path, LARGEST_TEXT_BYTES)
    except OSError as error:
        raise PlugInError.at(path, f"{error.strerror or error}", _expected(kind)) from None
    LOADED[str(path)] = hashlib.sha256(source).hexdigest()
    identity = hashlib.sha256(bytes(path) + b"\0" + source).hexdigest()[:16]
    name = f"plug_in_{identity}_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"  # noqa: S101 - for mypy
    found = util.module_from_spec(spec)
    found.__dict__["__source__"] = source
    sys.modules[name] = found  # Numba and pydantic look functions and classes up there
    try:
        exec(compile(source, path, "exec", dont_inherit=True), found.__dict__)  # noqa: S102 - the user names the file
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _wrong(path, error, kind) from error
    return found


def _note_source(found: ModuleType) -> None:
    """Keep the source of a package's module beside it, for the cache of kernels, unless it may run older code."""
    if found.__file__ is not None and found.__file__ not in LOADED:
        source = read_bytes(found.__file__, LARGEST_TEXT_BYTES)
        LOADED[found.__file__] = hashlib.sha256(source).hexdigest()
        if Path(found.__file__).stat().st_mtime < _BEGAN_S:
            found.__dict__["__source__"] = source

"""Files that PyTorch writes: host execution traces and Kineto traces, as JSON, gzipped or not."""

import gc
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.et.errors import TraceError

HOST, KINETO = "host-trace", "kineto"
EXPECTED = "a PyTorch host execution trace or a Kineto trace (JSON)"
_NAMES = ("*.json", "*.json.gz", "*.pt.trace.json", "*.pt.trace.json.gz")
_RANK = re.compile(r"rank[_-]?([0-9]{1,6})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,6}")


class Document(NamedTuple):
    """A parsed file."""

    path: Path  # path of the file
    kind: str  # HOST or KINETO
    data: dict[str, Any]  # the JSON object


def kind_of(path: Path) -> str:
    """Return whether a file is of HOST or KINETO; "" for any other file.

    Args:
        path: The file, which may be of any kind.
    """
    kind = inputs.kind_of(path)
    key = kind.key.removeprefix("gzip:") if kind is not None else ""
    return key if key in {HOST, KINETO} else ""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the files that paths name; for a folder, the traces of PyTorch in it at any depth, sorted by name.

    Args:
        paths: Files and folders.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted({file for name in _NAMES for file in path.rglob(name) if not file.name.startswith(".")})
            traces = [file for file in inside if kind_of(file)]
            if not traces:
                raise TraceError(f"{path}: none of its files is {EXPECTED}")
            found.extend(traces)
        else:
            found.append(path)
    return found


def read_document(path: Path) -> Document:
    """Parse a file; raise TraceError if the file cannot be read, is truncated, or is of another kind.

    Args:
        path: A file, which may be gzipped.
    """
    with inputs.refusing(path, EXPECTED, TraceError):
        text = b"".join(inputs.blocks(path)).decode("utf-8", errors="replace")
    try:
        with _no_garbage_collection():
            data = json.loads(text, strict=False)  # Kineto does not escape names
    except (ValueError, RecursionError) as error:
        kind = inputs.kind_of(path)
        if kind is not None and kind.key.removeprefix("gzip:") not in {HOST, KINETO, "json"}:
            raise TraceError(inputs.complaint(path, kind, EXPECTED)) from error
        raise TraceError(f"{path}: {error}, expected {EXPECTED} that is complete") from error
    if isinstance(data, dict) and isinstance(data.get("traceEvents"), list):
        return Document(path, KINETO, data)
    if isinstance(data, dict) and isinstance(data.get("nodes"), list) and "schema" in data:
        return Document(path, HOST, data)
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, EXPECTED))
    raise TraceError(f'{path}: found neither "traceEvents" nor "schema" and "nodes", expected {EXPECTED}')


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: JSON parsing makes no garbage, and searching for it multiplies the time by seven."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def ranks_by_name(paths: Sequence[Path]) -> list[int | None]:
    """Return the rank in each file name: "rank3", otherwise the number that differs between names; None without one.

    Args:
        paths: The files of all ranks of one run, of one kind.
    """
    matches = [_RANK.search(path.name) for path in paths]
    if all(matches):
        return [int(match[1]) for match in matches if match]
    names = [[int(number) for number in _NUMBER.findall(path.name)] for path in paths]
    if len(paths) < 2 or len({len(numbers) for numbers in names}) > 1:
        return [None] * len(paths)
    # A number that is different in each name is the rank; the last one, if there are several
    places = [place for place in range(len(names[0])) if len({numbers[place] for numbers in names}) == len(paths)]
    return [numbers[places[-1]] if places else None for numbers in names]

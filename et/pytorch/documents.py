"""Files that PyTorch writes: host execution traces and Kineto traces, JSON, gzipped or not."""

import gc
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import inputs
from et.errors import TraceError

HOST, KINETO = "host-trace", "kineto"
EXPECTED = "a PyTorch host execution trace or a Kineto trace (JSON)"
_NAMES = ("*.json", "*.json.gz", "*.pt.trace.json", "*.pt.trace.json.gz")
_RANK = re.compile(r"rank[_-]?([0-9]{1,6})", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,6}")


class Document(NamedTuple):
    """One file, parsed.

    Attributes:
        path: where it is.
        kind: HOST or KINETO.
        data: the JSON object.
    """

    path: Path
    kind: str
    data: dict[str, Any]


def kind_of(path: Path) -> str:
    """HOST, KINETO, or "" for any other file."""
    kind = inputs.kind_of(path)
    key = kind.key.removeprefix("gzip:") if kind is not None else ""
    return key if key in {HOST, KINETO} else ""


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files that paths name; of a folder those that PyTorch has written, at any depth, in order of names.

    Raises:
        TraceError: a folder has none, or a path is no such file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted({file for name in _NAMES for file in path.rglob(name) if not file.name.startswith(".")})
            ours = [file for file in inside if kind_of(file)]
            if not ours:
                raise TraceError(f"{path}: none of its files is {EXPECTED}")
            found.extend(ours)
        else:
            found.append(path)
    return found


def read_document(path: Path) -> Document:
    """Parse a file.

    Raises:
        TraceError: it cannot be read, is cut off, or is something else.
    """
    try:
        text = b"".join(inputs.blocks(path)).decode("utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}, expected {EXPECTED}") from error
    try:
        with _no_search_for_garbage():
            data = json.loads(text, strict=False)  # Kineto does not escape what stands in names
    except (ValueError, RecursionError) as error:
        kind = inputs.kind_of(path)
        if kind is not None and kind.key.removeprefix("gzip:") not in {HOST, KINETO, "json"}:
            raise TraceError(inputs.complaint(path, kind, EXPECTED)) from error
        raise TraceError(f"{path}: {error}, expected {EXPECTED}, whole") from error
    if isinstance(data, dict) and isinstance(data.get("traceEvents"), list):
        return Document(path, KINETO, data)
    if isinstance(data, dict) and isinstance(data.get("nodes"), list) and "schema" in data:
        return Document(path, HOST, data)
    kind = inputs.kind_of(path)
    if kind is not None:
        raise TraceError(inputs.complaint(path, kind, EXPECTED))
    raise TraceError(f'{path}: found neither "traceEvents" nor "schema" and "nodes", expected {EXPECTED}')


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """A parser leaves none, and Python would search all that it makes again and again: seven times the time."""
    searches = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searches:
            gc.enable()


def ranks_by_name(paths: Sequence[Path]) -> list[int | None]:
    """The rank that each name says: "rank3", else the number in which the names differ; None = there is none."""
    said = [_RANK.search(path.name) for path in paths]
    if all(said):
        return [int(match[1]) for match in said if match]
    numbers = [[int(number) for number in _NUMBER.findall(path.name)] for path in paths]
    if len(paths) < 2 or len({len(some) for some in numbers}) > 1:
        return [None] * len(paths)
    places = [place for place in range(len(numbers[0])) if len({some[place] for some in numbers}) == len(paths)]
    return [some[places[-1]] if places else None for some in numbers]

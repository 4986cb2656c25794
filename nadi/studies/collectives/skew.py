"""Bytes from each member to each for `nadi collective all-to-all-v`: from a file, or more for some than for others."""

import io
import math
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import inputs
from nadi.errors import ConfigError
from nadi.studies.collectives.microbench import CollectiveCase
from workload import CollectiveSettings
from workload.collectives.uneven.all_to_all_v import NAME as UNEVEN

Int64 = NDArray[np.int64]

_MOST_TOKENS = 1 << 16
_LARGEST_EXPONENT = 16.0


def demand(
    kind: str,
    matrix: Path | None,
    skew: str,
    members: int,
    seed: int,
    settings: CollectiveSettings = CollectiveSettings(),
) -> tuple[CollectiveCase, str]:
    """What `nadi collective` does, and where its matrix comes from, "" if it has none.

    Raises:
        ConfigError: an all-to-all-v without matrix or skew, or both, another kind with one, or as `read_matrix` and
            `parse_skew`.
    """
    if kind != UNEVEN:
        if matrix or skew:
            raise ConfigError(f"--{'matrix' if matrix else 'skew'}: found with {kind}; expected with {UNEVEN} only")
        return CollectiveCase(kind, None, settings), ""
    if bool(matrix) == bool(skew):
        raise ConfigError(f"{UNEVEN}: found {'both' if matrix else 'none'} of --matrix and --skew; expected one")
    if matrix is None:
        return CollectiveCase(kind, parse_skew(skew, seed), settings), skew
    read = read_matrix(matrix, members)
    return CollectiveCase(kind, lambda _, __: read, settings), str(matrix)


def read_matrix(path: Path, members: int) -> Int64:
    """int64[members, members], bytes from member (row) to member (column), of a .npy file, else CSV.

    Raises:
        ConfigError: the file cannot be read, is no square matrix of whole numbers from 0, or of other members.
    """
    try:
        matrix = _of_npy(path) if path.suffix == ".npy" else _of_csv(path)
    except OSError as error:
        raise ConfigError(f"--matrix {path}: {error.strerror or error}, expected a file") from error
    except (ValueError, OverflowError, SyntaxError, EOFError, tokenize.TokenError) as error:
        kind = inputs.kind_of(path)
        if kind is not None and kind.key not in {"npy", "csv", "text", "empty"}:
            expected = "rows of whole numbers, or NumPy's .npy"
            raise ConfigError(f"--matrix {inputs.complaint(path, kind, expected)}") from None
        raise ConfigError(f"--matrix {path}: {error}; expected rows of whole numbers, or NumPy's .npy") from error
    if matrix.shape != (members, members):
        shape = " x ".join(map(str, matrix.shape)) or "one number"
        raise ConfigError(f"--matrix {path}: found {shape}; expected {members} x {members}, a row for each sender")
    if not np.issubdtype(matrix.dtype, np.integer):
        raise ConfigError(f"--matrix {path}: found {matrix.dtype}; expected whole numbers of bytes")
    if matrix.min() < 0 or int(matrix.max()) > np.iinfo(np.int64).max // members:
        wrong = matrix.min() if matrix.min() < 0 else matrix.max()
        raise ConfigError(f"--matrix {path}: found {wrong} B; expected 0 or more, and 2^63 in a row at most")
    return matrix.astype(np.int64)


def _of_npy(path: Path) -> NDArray[Any]:
    """The array of a file, of which no more is believed than the file has."""
    data = inputs.read_bytes(path)
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise ValueError(f"version {'.'.join(map(str, version))} of .npy, expected 1.0 or 2.0")
    shape, _, dtype = header(file)
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != len(data) - file.tell():
        raise ValueError(f"a header of {claimed:,} bytes of numbers, but {len(data) - file.tell():,} follow")
    file.seek(0)
    loaded: NDArray[Any] = np.load(file, allow_pickle=False)
    return loaded


def _of_csv(path: Path) -> Int64:
    """Numbers apart by commas; empty lines and what follows a # do not count."""
    lines = (line.partition("#")[0].strip() for line in inputs.read_text(path).splitlines())
    rows = [[int(cell) for cell in line.split(",")] for line in lines if line]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise ValueError(f"rows of {' and '.join(map(str, lengths)) or 'no'} numbers")
    return np.array(rows, np.int64)


def parse_skew(text: str, seed: int) -> Callable[[int, int], Int64]:
    """What makes the matrix of a size and a number of members, of "zipf:EXPONENT".

    Every member sends the size, of which the member that stands k-th in a random order gets a share of 1 / k^EXPONENT
    (Zipf): 0 is even. Sizes are whole tokens, 65,536 to a member's buffer or one byte each.

    Raises:
        ConfigError: another form, or an exponent out of range.
    """
    name, _, number = text.partition(":")
    try:
        exponent = float(number)
    except ValueError:
        exponent = math.nan
    if name != "zipf" or not 0 <= exponent <= _LARGEST_EXPONENT:
        raise ConfigError(f"--skew {text}: expected zipf:EXPONENT, as zipf:1.2, with an exponent from 0 to 16")

    def matrix(size_bytes: int, members: int) -> Int64:
        order = np.random.default_rng(seed).permutation(members)
        weight = np.empty(members)
        weight[order] = np.arange(1.0, members + 1) ** -exponent
        return np.tile(_shared(size_bytes, weight), (members, 1))

    return matrix


def _shared(size_bytes: int, weight: NDArray[np.float64]) -> Int64:
    """int64[members]: a size in whole tokens by weight; what is left over goes to the largest fractions."""
    tokens = min(size_bytes, _MOST_TOKENS)
    exact = tokens * weight / weight.sum()
    count = np.floor(exact).astype(np.int64)
    most_left = np.argsort(count - exact, kind="stable")
    count[most_left[: tokens - int(count.sum())]] += 1
    return count * (size_bytes // tokens)

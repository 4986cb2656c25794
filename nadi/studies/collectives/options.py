"""Sizes of `nadi collective`, and bytes between members of all-to-all-v: a matrix file, or a skewed distribution."""

import io
import math
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nadi import inputs
from nadi.errors import ConfigError
from nadi.inputs.arrays import Int64
from nadi.inputs.limits import MAX_BYTES
from nadi.inputs.units import parse_bytes_within
from nadi.studies.collectives.measuring import CollectiveCase
from nadi.workload.collectives import UNEVEN

MAX_SIZES = 1000  # maximum number of sizes in one range of --sizes
_KIND_WITHOUT_SIZE = "barrier"
_MAX_FACTOR_LENGTH = 15  # maximum number of characters of a factor such as "x2"
_MAX_TOKENS = 1 << 16  # number of equal tokens into which a member's buffer is divided, unless it has fewer bytes
_MAX_EXPONENT = 16.0  # maximum Zipf exponent: at 16 one member gets nearly all bytes


def sizes_of(kind: str, sizes_option: str) -> list[int]:
    """Return the bytes of --sizes for a kind, a barrier has the single size 0; errors are those of `parse_sizes`.

    Args:
        kind: The kind of the collective.
        sizes_option: The value of --sizes.
    """
    sizes = parse_sizes(sizes_option)
    return [0] if kind == _KIND_WITHOUT_SIZE else sizes


def parse_sizes(sizes_option: str) -> list[int]:
    """Return the unique bytes of "64KiB", "1MiB,4MiB", "8:8GiB:x2" (doubling) or "1MiB:8MiB:+1MiB".

    Args:
        sizes_option: The value of --sizes.
    """
    sizes = [size for part in sizes_option.split(",") for size in _range(part.strip())]
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"--sizes {sizes_option}: found a size of 0; expected sizes like 1MiB:1GiB:x2")
    return list(dict.fromkeys(sizes))


def _range(part_of_sizes: str) -> list[int]:
    """Return the sizes in bytes of one part of --sizes: a size, or FIRST:LAST:STEP."""
    parts = part_of_sizes.split(":")
    if len(parts) == 1:
        return [parse_bytes_within(part_of_sizes, MAX_BYTES)]
    if len(parts) != 3 or parts[2][:1] not in {"x", "+"}:
        raise ConfigError(f"--sizes {part_of_sizes}: expected a form like 1MiB:1GiB:x2, 1MiB:8MiB:+1MiB or 64KiB")
    first, last = (parse_bytes_within(part, MAX_BYTES) for part in parts[:2])
    step = parts[2]
    factor, summand = (
        (_factor(part_of_sizes, step), 0) if step[0] == "x" else (1, parse_bytes_within(step[1:], MAX_BYTES))
    )
    if first < 1 or (factor < 2 and summand < 1):
        raise ConfigError(
            f"--sizes {part_of_sizes}: does not grow; expected a first size above 0 and a step like x2 or +1MiB"
        )
    sizes = []
    while first <= last:
        sizes.append(first)
        first = first * factor + summand
        if len(sizes) > MAX_SIZES:
            raise ConfigError(f"--sizes {part_of_sizes}: more than {MAX_SIZES} sizes; expected fewer")
    if not sizes:
        raise ConfigError(f"--sizes {part_of_sizes}: the first size is above the last; expected first:last:step")
    return sizes


def _factor(part_of_sizes: str, step: str) -> int:
    """Return the factor of a step such as "x2"; raise ConfigError if it is not a whole number."""
    if not step[1:].isdecimal() or len(step) > _MAX_FACTOR_LENGTH:
        raise ConfigError(f"--sizes {part_of_sizes}: found factor {step!r}; expected a whole number, as x2")
    return int(step[1:])


def demand(kind: str, matrix: Path | None, skew: str, seed: int) -> tuple[CollectiveCase, str]:
    """Return the collective that `nadi collective` runs, and the source of its matrix; "" without a matrix.

    `matrix` and `skew` are options of the command line; an all-to-all-v takes one of them; `seed` orders the members.
    The file is read here, before a fabric is built for it; `CollectiveCase.matrix` refuses another number of members.

    Args:
        kind: The kind of the collective.
        matrix: The file of a matrix of bytes; None without one.
        skew: The value of --skew; "" without one.
        seed: The number that the random choices depend on.
    """
    if kind != UNEVEN:
        if matrix or skew:
            raise ConfigError(f"--{'matrix' if matrix else 'skew'}: found with {kind}; expected with {UNEVEN} only")
        return CollectiveCase(kind), ""
    if bool(matrix) == bool(skew):
        raise ConfigError(f"{UNEVEN}: found {'both' if matrix else 'neither'} of --matrix and --skew; expected one")
    if matrix is None:
        return CollectiveCase(kind, parse_skew(skew, seed)), skew
    bytes_between = read_matrix(matrix)

    def of_members(_size_bytes: int, num_members: int) -> Int64:
        """Return the matrix if it has a row and a column for each member; raise ConfigError otherwise."""
        if bytes_between.shape != (num_members, num_members):
            shape = " x ".join(map(str, bytes_between.shape)) or "one number"
            raise ConfigError(
                f"--matrix {matrix}: found {shape}; expected {num_members} x {num_members}, a row for each sender"
            )
        return bytes_between

    return CollectiveCase(kind, of_members), str(matrix)


def read_matrix(path: Path) -> Int64:
    """Return the array of a .npy or CSV file, bytes from member (row) to member, whatever its shape.

    Args:
        path: The .npy or CSV file.
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
    if not np.issubdtype(matrix.dtype, np.integer):
        raise ConfigError(f"--matrix {path}: found {matrix.dtype}; expected whole numbers of bytes")
    # the sum of a row must fit into 64 bits, too
    columns = matrix.shape[-1] if matrix.ndim else 1
    if matrix.size and (matrix.min() < 0 or int(matrix.max()) > np.iinfo(np.int64).max // columns):
        wrong = matrix.min() if matrix.min() < 0 else matrix.max()
        raise ConfigError(f"--matrix {path}: found {wrong} B; expected 0 or more, and a row sum below 2^63")
    return matrix.astype(np.int64)


def _of_npy(path: Path) -> NDArray[Any]:
    """Return the array of a .npy file after checking that its header matches the size of the file."""
    data = inputs.read_bytes(path)
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if header is None:
        raise ValueError(f"version {'.'.join(map(str, version))} of .npy, expected 1.0 or 2.0")
    shape, _, dtype = header(file)
    # np.load would allocate what the header claims before it finds the file too short
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != len(data) - file.tell():
        raise ValueError(f"the header declares {claimed:,} bytes of numbers, but {len(data) - file.tell():,} follow")
    file.seek(0)
    loaded: NDArray[Any] = np.load(file, allow_pickle=False)
    return loaded


def _of_csv(path: Path) -> Int64:
    """Return the comma-separated numbers of a file; empty lines and comments after # are ignored."""
    lines = (line.partition("#")[0].strip() for line in inputs.read_text(path).splitlines())
    rows = [[int(cell) for cell in line.split(",")] for line in lines if line]
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise ValueError(f"rows of {' and '.join(map(str, lengths)) or 'no'} numbers")
    return np.array(rows, np.int64)


def parse_skew(skew_option: str, seed: int) -> Callable[[int, int], Int64]:
    """Return a function from size in bytes and number of members to the matrix of "zipf:EXPONENT".

    Every member sends the size, rounded down to equal tokens: 983,040 B of 1,000,000 B. Members are ranked in a random
    order, and the k-th gets a share proportional to 1 / k^EXPONENT (Zipf); exponent 0 is even. Shares are rounded to
    tokens: 65,536 per buffer, or one byte each. Raises ConfigError if the form is wrong, or the exponent is out of
    range.

    Args:
        skew_option: The value of --skew.
        seed: The number that the random choices depend on.
    """
    name, _, number = skew_option.partition(":")
    try:
        exponent = float(number)
    except ValueError:
        exponent = math.nan
    if name != "zipf" or not 0 <= exponent <= _MAX_EXPONENT:
        raise ConfigError(f"--skew {skew_option}: expected zipf:EXPONENT, as zipf:1.2, with an exponent from 0 to 16")

    def matrix(size_bytes: int, members: int) -> Int64:
        order = np.random.default_rng(seed).permutation(members)
        weight = np.empty(members)
        weight[order] = np.arange(1.0, members + 1) ** -exponent
        tokens = min(size_bytes, _MAX_TOKENS)
        exact = tokens * weight / weight.sum()
        tokens_of_member = np.floor(exact).astype(np.int64)
        # Largest remainders: shares 5.7, 2.6, 1.7 of ten tokens are floored to 5, 2, 1, and the two tokens that are
        # left go to the first and the third. The sum is exact, and no share is off by a token or more.
        by_remainder = np.argsort(tokens_of_member - exact, kind="stable")
        tokens_of_member[by_remainder[: tokens - int(tokens_of_member.sum())]] += 1
        # int64[sender, receiver] with equal rows: all members prefer the same receivers, as tokens the same experts
        return np.tile(tokens_of_member * (size_bytes // tokens), (members, 1))

    return matrix

"""Values of the product as JSON: names and numbers, without classes, functions and places of modules."""

import dataclasses
import zlib

import numpy as np

LONGEST_LIST = 8
"""Number of entries up to which an array is recorded as a list; of a longer one its size, sum and checksum."""


def plain(value, usual=None):
    """Return a value as JSON can hold it.

    Args:
        value: Number, text, array, or dataclass or named tuple of such values. Something with a name and functions, as
            a congestion control, is its name and the numbers that it has beside.
        usual: Dataclass or named tuple of the same kind, whose equal fields are left out; None = nothing is left out.
    """
    found = value
    fields = _fields(value)
    if isinstance(value, np.ndarray):
        found = _array(value)
    elif isinstance(value, np.generic):
        found = value.item()
    elif isinstance(value, dict):
        found = {str(key): plain(entry) for key, entry in value.items()}
    elif fields is not None and "name" in fields:
        found = [value.name, *plain(getattr(value, "values", ()))]
    elif fields is not None:
        before = {} if usual is None else {name: plain(getattr(usual, name)) for name in fields}
        after = {name: plain(getattr(value, name)) for name in fields}
        found = {name: entry for name, entry in after.items() if name not in before or before[name] != entry}
    elif isinstance(value, (set, frozenset)):
        found = sorted(map(plain, value))
    elif isinstance(value, (list, tuple)):
        found = [plain(entry) for entry in value]
    elif callable(value):
        found = value.__name__
    return found


def _fields(value):
    """Return the names of the fields of a dataclass or a named tuple, None of anything else."""
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return getattr(value, "_fields", None)


def _array(values):
    """Return a short array as a list, a long one by its size, sum and checksum."""
    if values.size <= LONGEST_LIST:
        return values.tolist()
    numbers = np.ascontiguousarray(values, np.int64 if values.dtype.kind in "iub" else np.float64)
    return {"size": values.size, "sum": numbers.sum().item(), "checksum": zlib.crc32(numbers.tobytes())}

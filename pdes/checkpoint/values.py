"""Nested values as values of JSON beside numbered arrays: for the state that the engine holds in Python objects."""

from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

import numpy as np

from nadi.pdes.checkpoint.contract import SavedState


def numbered_arrays(arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays by their numbers, in the names that `array_list` finds."""
    return {f"#{number}": array for number, array in enumerate(arrays)}


def array_list(state: SavedState) -> list[np.ndarray]:
    """Return the arrays of a state that `numbered_arrays` has named."""
    names = takewhile(state.arrays.__contains__, (f"#{number}" for number in count()))
    return [state.arrays[name] for name in names]


def packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON; arrays: list to which its arrays are added, which their numbers then name.

    Values: None, an integer, an array, a NamedTuple, or a list, tuple or dictionary of values.
    """
    if value is None or isinstance(value, int | np.integer):
        return None if value is None else int(value)
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, dict):
        return {"pairs": [[packed(key, arrays), packed(each, arrays)] for key, each in value.items()]}
    kind = type(value).__name__ if hasattr(value, "_fields") else "list" if isinstance(value, list) else "tuple"
    return {kind: [packed(each, arrays) for each in value]}


def unpacked(document: Any, arrays: Sequence[np.ndarray], kinds: Sequence[type]) -> Any:
    """Return the value of a document of `packed`.

    Args:
        document: The value as JSON; arrays are named by their index in `arrays`.
        arrays: Arrays to which the document refers.
        kinds: Classes of NamedTuples that may be in the value.
    """
    if not isinstance(document, dict):
        return document
    ((kind, content),) = document.items()
    if kind == "array":
        return arrays[content].copy()
    if kind == "pairs":
        return {unpacked(key, arrays, kinds): unpacked(each, arrays, kinds) for key, each in content}
    values = [unpacked(each, arrays, kinds) for each in content]
    if kind == "list":
        return values
    return tuple(values) if kind == "tuple" else next(each for each in kinds if each.__name__ == kind)(*values)

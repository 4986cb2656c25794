"""Checks of values against a `Parameters` model, with one-line errors."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from topologies.errors import TopologyError
from topologies.parameters import Parameters

Model = TypeVar("Model", bound=Parameters)


def checked(model: type[Model], values: Mapping[str, object], place: str) -> Model:
    """Return the model of the values.

    Raises TopologyError: a key is unknown (the text names the nearest and all known ones) or missing, or a value is
    wrong. The text begins with `place`.
    """
    for key in values:
        if key not in model.model_fields:
            raise TopologyError(f"{place}: unknown key {key!r}; {suggest(key, model.model_fields)}")
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        if first["type"] == "missing":
            expected = model.model_fields[key].description or key
            raise TopologyError(f"{place}: key {key!r} is missing; expected {expected}") from None
        reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else _reason(first["input"], first["msg"])
        raise TopologyError(f"{place}: {key}: {reason}") from None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a text with the nearest of the known names, if one is near, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(names)}"


def _reason(value: object, message: str) -> str:
    return f"{value!r}; {message[:1].lower()}{message[1:]}"

"""Documents of users, other programs and earlier runs: parsed, validated by a schema, refused in one line."""

import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from nadi.inputs.errors import InputError
from nadi.inputs.files import parse_toml, read_text, shown
from nadi.inputs.kinds import complaint, kind_of

_LONGEST_VALUE = 60  # characters of a wrong value that a message quotes
_UNITS = {"bytes", "ps", "bps", "packets"}  # ends of names that keys of run files do not have
_MAX_LISTED = 16  # known keys that a message lists
_OUT_OF_RANGE = frozenset({"greater_than_equal", "less_than_equal", "finite_number"})

Model = TypeVar("Model", bound=BaseModel)


class DocumentError(InputError):
    """A document is invalid: one line with the place in it, the value found and what was expected."""


def read_toml(path: Path, expected: str, error: type[ValueError], *own_kinds: str) -> dict[str, Any]:
    """Return the content of a TOML file; else raise an `error` of one line with the path and what was expected.

    A file of a known kind outside of `own_kinds` is refused by the name of its kind; without any, none is.

    Args:
        path: The file to read.
        expected: A noun phrase for the content that is allowed, for errors.
        error: The class of the errors.
        own_kinds: Keys of the kinds of files (`inputs.kinds`) that are allowed.
    """
    try:
        return parse_toml(read_text(path))
    except OSError as problem:
        refuse_other_kinds(path, expected, error, *own_kinds)
        raise error(f"{path}: {problem.strerror or problem}; expected {expected}") from None
    except (ValueError, RecursionError) as problem:  # also wrong UTF-8, a number of 5,000 digits, lists in lists
        if own_kinds:
            refuse_other_kinds(path, expected, error, *own_kinds, "text")
        raise error(f"{path}: no TOML: {problem}; expected {expected}") from None


def refuse_other_kinds(path: Path, expected: str, error: type[ValueError], *own_kinds: str) -> None:
    """Raise an `error` that names the file's kind if it is a known one and none of `own_kinds`, if there are any.

    Args:
        path: The file that cannot be used.
        expected: A noun phrase for the content that is allowed, for errors.
        error: The class of the error.
        own_kinds: Keys of the kinds of files (`inputs.kinds`) that are allowed.
    """
    kind = kind_of(path) if own_kinds else None
    if kind is not None and kind.key not in {*own_kinds, "toml"}:
        raise error(complaint(path, kind, expected))


def checked(
    model: type[Model],
    values: object,
    label: object,
    error: type[ValueError],
    place_of: Callable[[Sequence[str]], str] = ".".join,
) -> Model:
    """Return the model of these values; raise an `error` that begins with `label` for a wrong key or value.

    `place_of` writes the keys that lead to a wrong value.
    """
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise error(f"{label}: {first_complaint(problem, model, place_of)}") from None


def read_document(path: Path, schema: TypeAdapter[Any]) -> Any:  # noqa: ANN401 - of the schema's type
    """Read a JSON file and return it as its schema validates it; raise OSError or DocumentError if it cannot.

    Args:
        path: A JSON file.
        schema: The type of the content.
    """
    try:
        document = json.loads(read_text(path))
    except RecursionError:
        raise DocumentError("lists are nested too deeply; expected a document of this program") from None
    except ValueError as error:
        raise DocumentError(f"no JSON: {error}") from None
    return validated(document, schema)


def validated(document: object, schema: TypeAdapter[Any]) -> Any:  # noqa: ANN401 - of the schema's type
    """Validate a parsed document; raise DocumentError if a value is missing or wrong.

    Args:
        schema: The type of the content.
        document: Values of JSON, already parsed.
    """
    try:
        return schema.validate_python(document)
    except ValidationError as error:
        raise DocumentError(first_complaint(error)) from None


def first_complaint(
    error: ValidationError, model: type[BaseModel] | None = None, place_of: Callable[[Sequence[str]], str] = ".".join
) -> str:
    """Return the first complaint of a validation in one line, unknown keys first: place, value found, and expectation.

    `model` is the one that was validated, None = an adapter of other types; `place_of` writes the keys of a place.

    Args:
        error: The failed validation.
        model: The model that was validated, whose keys the message lists; None for other types.
        place_of: A function from the keys that lead to a value to the text of its place.
    """
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    keys = [str(key) for key in first["loc"]]
    field = _fields_at(model, keys[:-1]).get(keys[-1]) if keys else None
    reason = first.get("ctx", {}).get("error")
    message = (first["msg"][:1].lower() + first["msg"][1:]).replace("input should be", "expected")
    if first["type"] == "extra_forbidden":
        text = f"unknown key; {_nearest(keys[-1], _fields_at(model, keys[:-1]))}"
    elif first["type"] == "missing":
        kind = "this section" if _fields_at(model, keys) else "a value"
        text = f"missing; expected {field.description or kind}" if field else "missing"
    elif reason is not None:
        text = str(reason)
    else:
        expected = _range(field) if field and first["type"] in _OUT_OF_RANGE else message
        text = f"found {quoted(first['input'])}; {expected or message}"
    place = place_of(keys) or ("" if model else "document")
    return shown(f"{place}: {text}" if place else text)


def _fields_at(model: type[BaseModel] | None, keys: Sequence[str]) -> dict[str, FieldInfo]:
    """Return the fields of the table that keys lead to in a document of a model, by key; {} if that is no table."""
    for key in (key for key in keys if not key.isdigit()):
        field = _fields_at(model, ()).get(key)
        types = (field.annotation, *get_args(field.annotation)) if field else ()
        model = next((one for one in types if isinstance(one, type) and issubclass(one, BaseModel)), None)
    return {field.alias or name: field for name, field in model.model_fields.items()} if model else {}


def _nearest(key: str, known_keys: Mapping[str, object]) -> str:
    """Return advice for an unknown key: the known key without its unit, or the nearest name."""
    without_unit, _, unit = key.rpartition("_")
    if unit in _UNITS and without_unit in known_keys:
        return f"nearest known key: {without_unit}"
    near = difflib.get_close_matches(key.replace("-", "_"), known_keys, n=1, cutoff=0.0)
    known = f" (of {', '.join(sorted(known_keys))})" if len(known_keys) <= _MAX_LISTED else ""
    return f"nearest known key: {near[0]}{known}" if near else "expected none"


def _range(field: FieldInfo) -> str:
    """Return "expected MIN to MAX" for a number with two bounds, else ""."""
    ends = [
        next((getattr(bound, end) for bound in field.metadata if hasattr(bound, end)), None) for end in ("ge", "le")
    ]
    return "" if None in ends else f"expected {ends[0]} to {ends[1]}"


def quoted(value: object) -> str:
    """Return a value as an error message quotes it: one line of bounded length."""
    if isinstance(value, int) and abs(value) > 10**_LONGEST_VALUE:
        return f"a number of {math.log10(abs(value)):.0f} digits"
    text = repr(value)
    return shown(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}...")

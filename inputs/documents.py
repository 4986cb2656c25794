"""JSON documents of another program or an earlier run: parsed, validated by a schema, refused in one line."""

import json
import math
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from inputs.names import shown
from inputs.reading import read_text

_LONGEST_VALUE = 60  # characters of a wrong value that a message quotes


class DocumentError(ValueError):
    """A document is invalid: one line with the place in it, the value found and what was expected."""


def read_document(path: Path, schema: TypeAdapter[Any]) -> Any:  # noqa: ANN401 - of the schema's type
    """Read a JSON file and return it as its schema validates it; raise OSError or DocumentError if it cannot."""
    try:
        document = json.loads(read_text(path))
    except RecursionError:
        raise DocumentError("lists are nested too deeply; expected a document of this program") from None
    except ValueError as error:
        raise DocumentError(f"no JSON: {error}") from None
    return validated(document, schema)


def validated(document: object, schema: TypeAdapter[Any]) -> Any:  # noqa: ANN401 - of the schema's type
    """Validate a parsed document; raise DocumentError if a value is missing or wrong."""
    try:
        return schema.validate_python(document)
    except ValidationError as error:
        raise DocumentError(first_complaint(error)) from None


def first_complaint(error: ValidationError) -> str:
    """Return the first complaint of a validation in one line: place, value found, and expectation."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"])) or "document"
    if first["type"] == "missing":
        return shown(f"{place}: missing")
    expected = first["msg"][:1].lower() + first["msg"][1:]
    return shown(f"{place}: found {quoted(first['input'])}; {expected.replace('input should be', 'expected')}")


def quoted(value: object) -> str:
    """Return a value as an error message quotes it: one line of bounded length."""
    if isinstance(value, int) and abs(value) > 10**_LONGEST_VALUE:
        return f"a number of {math.log10(abs(value)):.0f} digits"
    text = repr(value)
    return shown(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}...")

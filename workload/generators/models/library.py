"""Models by name or file: TOML files of this folder, other TOML files, or config.json files of Hugging Face."""

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import inputs
from workload.errors import WorkloadError
from workload.generators.models import huggingface
from workload.generators.models.model import Model

_FOLDER = Path(__file__).parent
_BETWEEN = str.maketrans("", "", "-_ ")
_SIZE = re.compile(r"(?<=[-x])(?:a)?([0-9.]+)([xmbt])")
_UNITS = {"x": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}
_EXPECTED = "a model (TOML, or a config.json of Hugging Face)"


@cache
def names() -> tuple[str, ...]:
    """Return the names of the library's models, sorted by family, then by size."""
    return tuple(sorted((path.stem for path in _FOLDER.glob("*.toml")), key=_by_family_and_size))


def find(name: str) -> Model:
    """Return the model of a name (without regard to case, "-", "_" and spaces) or file; WorkloadError if unknown."""
    if name.endswith((".toml", ".json")) or "/" in name:
        return read(Path(name))
    known = {_bare(each): each for each in names()}
    library_name = known.get(_bare(name))
    if library_name is not None:
        return read(_FOLDER / f"{library_name}.toml")
    if Path(name).is_file():
        return read(Path(name))
    near = difflib.get_close_matches(_bare(name), known, n=1, cutoff=0.0)
    raise WorkloadError(
        f"model {name!r}: not in the library, nearest {known[near[0]]}; known: {', '.join(names())}; "
        f"or the path of {_EXPECTED}"
    )


def read(path: Path) -> Model:
    """Return the model of a file."""
    try:
        text = inputs.read_text(path)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}, expected {_EXPECTED}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: no UTF-8, expected {_EXPECTED}") from None
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return huggingface.model_of(text, path)
    try:
        values = inputs.parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: no TOML: {error}, expected {_EXPECTED}") from None
    return model_of({"name": path.stem, **values}, path)


def model_of(values: Mapping[str, Any], source: object) -> Model:
    """Return the model with the given fields; source: name of the fields' source, for messages."""
    try:
        return Model(**values)
    except ValidationError as error:
        raise WorkloadError(f"{source}: {_explained(error)}") from None


def _explained(error: ValidationError) -> str:
    """Return one line about the first error in a model; unknown keys come first."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}; known: {', '.join(Model.model_fields)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    reason = first.get("ctx", {}).get("error")
    if reason is not None:
        return f"{key}: {reason}" if key else str(reason)
    message = first["msg"][:1].lower() + first["msg"][1:]
    return f"{key} is {first['input']!r}, expected: {message.removeprefix('input should be ')}"


def _bare(name: str) -> str:
    return name.lower().translate(_BETWEEN)


def _by_family_and_size(name: str) -> tuple[str, list[float]]:
    """Return a model's name without its sizes, and the sizes in parameters: ("llama-", [7e9]) for "llama-7b"."""
    family, numbers = name, []
    for match in _SIZE.finditer(name):
        family = family.replace(match[0], "", 1)
        numbers.append(float(match[1]) * _UNITS[match[2]])
    return family, numbers

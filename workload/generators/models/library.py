"""Models by name or file: TOML files of this folder, other TOML files, or config.json files of Hugging Face."""

import difflib
import re
from functools import cache
from pathlib import Path

from nadi import inputs
from nadi.inputs import plug_ins
from nadi.inputs.documents import checked
from nadi.workload.errors import WorkloadError
from nadi.workload.generators.models import huggingface
from nadi.workload.generators.models.model import Model

_KIND = "model"
_BETWEEN = str.maketrans("", "", "-_ ")
_SIZE = re.compile(r"(?<=[-x])(?:a)?([0-9.]+)([xmbt])")
_UNITS = {"x": 1.0, "m": 1e6, "b": 1e9, "t": 1e12}
_EXPECTED = "a model (TOML, or a config.json of Hugging Face)"


@cache
def names() -> tuple[str, ...]:
    """Return the names of the library's models and of those of installed packages, by family, then by size."""
    return tuple(sorted(plug_ins.names(_KIND), key=_by_family_and_size))


def find(name: str) -> Model:
    """Return the model of a name (without regard to case, "-", "_" and spaces) or file; WorkloadError if unknown."""
    if name.endswith((".toml", ".json")) or "/" in name:
        return read(Path(name))
    known = {_bare(each): each for each in names()}
    library_name = known.get(_bare(name))
    if library_name is not None:
        return read(plug_ins.toml_file(_KIND, library_name, WorkloadError))
    if Path(name).is_file():
        return read(Path(name))
    near = difflib.get_close_matches(_bare(name), known, n=1, cutoff=0.0)
    raise WorkloadError(
        f"model {name!r}: not in the library, nearest {known[near[0]]}; known: {', '.join(names())}; "
        f"or the path of {_EXPECTED}"
    )


def read(path: Path) -> Model:
    """Return the model of a file."""
    with inputs.refusing(path, _EXPECTED, WorkloadError, UnicodeDecodeError):
        text = inputs.read_text(path)
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return huggingface.model_of(text, path)
    try:
        values = inputs.parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: no TOML: {error}, expected {_EXPECTED}") from None
    return checked(Model, {"name": path.stem, **values}, path, WorkloadError)


def _bare(name: str) -> str:
    return name.lower().translate(_BETWEEN)


def _by_family_and_size(name: str) -> tuple[str, list[float]]:
    """Return a model's name without its sizes, and the sizes in parameters: ("llama-", [7e9]) for "llama-7b"."""
    family, numbers = name, []
    for match in _SIZE.finditer(name):
        family = family.replace(match[0], "", 1)
        numbers.append(float(match[1]) * _UNITS[match[2]])
    return family, numbers

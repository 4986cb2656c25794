"""Reading of other simulators' files, and of those that they name from another folder; writing of run files."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from nadi import inputs
from nadi.configuration.run_config import RunConfig
from nadi.errors import ConfigError, OutputError
from nadi.importers import Sections
from nadi.inputs.documents import checked
from nadi.inputs.mappings import parse_mapping
from nadi.workload import TraceSet
from nadi.workload.trace_sets import write_set

LARGEST_BYTES = 1 << 22  # maximum size of a configuration; the largest published ones have a few kB
Model = TypeVar("Model", bound=BaseModel)


class PeerFile(BaseModel):
    """Base of the models of files: unknown keys are kept, because other simulators ignore them."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=False)

    def unknown_keys(self) -> list[str]:
        """Return the keys of the file that the model does not have."""
        return sorted(self.model_extra or {})


def read_text(path: Path, expected: str) -> str:
    """Return the text of a file; ConfigError if it cannot be read. `expected` is a phrase for messages."""
    try:
        return inputs.read_bytes(path, LARGEST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; expected {expected}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: no text; expected {expected}") from None


def read_model(path: Path, model: type[Model], expected: str) -> Model:
    """Return the validated content of a JSON or YAML file; ConfigError if a value is wrong."""
    return checked(model, parsed(read_text(path, expected), path, expected), path, ConfigError)


def parsed(text: str, path: Path, expected: str) -> Any:  # noqa: ANN401 - of JSON or YAML
    """Return the mapping that a JSON or YAML text holds; ConfigError if it holds none."""
    try:
        return parse_mapping(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; expected {expected}") from None


def find_named(name: str, named_in: Path, ending: str = "") -> Path:
    """Return the path of a file, without an ending, that another file names.

    Other simulators start in folders of their own, so that a relative path is searched from the current folder, then
    from the folder of `named_in` and those above it, there also without its first folders; its last word alone only in
    the folder itself. An unknown path is returned as it is.
    """
    return next((path for path in _places(name, named_in) if _exists(path, ending)), Path(name))


def _places(name: str, named_in: Path) -> Iterator[Path]:
    yield Path(name)
    parts = [part for part in Path(name).parts if part not in {"..", "/"}]
    folders = list(named_in.absolute().parents)
    # "../inputs/traces/a" named in /x/y/net.json: inputs/traces/a in /x/y, /x and /, then traces/a there, then /x/y/a
    for first in range(len(parts)):
        for folder in folders if first < len(parts) - 1 else folders[:1]:
            yield folder.joinpath(*parts[first:])


def _exists(path: Path, ending: str) -> bool:
    try:
        return Path(f"{path}{ending}").is_file()
    except (OSError, ValueError):
        return False


def write_run_file(path: Path, config: RunConfig, sections: Sections, header: str) -> None:
    """Write a configuration as a run file: the keys of `sections`, and those that the user named.

    `header` becomes a comment. Traces in memory go to a folder beside the file. Paths become absolute, because relative
    ones of a run file count from its own folder.
    """
    values = config.with_paths(lambda name: str(Path(name).absolute())).settled()
    traces = sections.get("workload", {}).get("trace_set")
    lines = [f"# {inputs.shown(header)}"]
    try:
        if isinstance(traces, TraceSet):
            values["workload"]["traces"] = str(write_set(path.with_suffix(".traces"), traces).absolute())
            del values["workload"]["trace_set"]
        for name, section in values.items():
            for table in section if isinstance(section, list) else [section]:
                keys = [key for key in table if _is_given(config.named, sections, name, key)]
                if keys:
                    lines += ["", f"[[{name}]]" if isinstance(section, list) else f"[{name}]"]
                    lines += [f"{key} = {_toml(table[key])}" for key in keys]
        inputs.write_whole(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


def _is_given(named_keys: Collection[str], sections: Sections, name: str, key: str) -> bool:
    """Return whether a key is in the sections, or the user named it; traces are written whatever gave them."""
    section = sections.get(name, {})
    # the dots keep "network.ack" from standing for "network.acknowledged"
    named = any(f"{text}.".startswith(f"{name}.{key}.") for text in named_keys)
    return named or isinstance(section, list) or key in section or (name, key) == ("workload", "traces")


def _toml(value: Any) -> str:  # noqa: ANN401 - of TOML
    """Return a value as one line of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value)

"""Writing of the run file that files of another simulator are equivalent to."""

import json
from pathlib import Path
from typing import Any

import inputs
from nadi.errors import OutputError
from nadi.importers.file_sections import Sections
from workload.trace_sets.files import write_set


def write_run_file(path: Path, sections: Sections, header: str) -> None:
    """Write sections as a run file, with `header` as a comment. Traces in memory go to a folder beside it.

    Relative paths of the sections count from the current folder, in the run file from its own: they become absolute.
    """
    contents = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in sections.items()}
    traces = contents["workload"].pop("trace_set", None)
    try:
        if traces is not None:
            contents["workload"]["traces"] = str(write_set(path.with_suffix(".traces"), traces).absolute())
        lines = [f"# {inputs.shown(header)}"]
        for name, keys in contents.items():
            for table in keys if isinstance(keys, list) else [keys]:
                lines += ["", f"[[{name}]]" if isinstance(keys, list) else f"[{name}]"]
                lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
        inputs.write_whole(path, "\n".join(lines) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from None


def _toml(value: Any) -> str:  # noqa: ANN401 - of TOML
    """Return a value as one line of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"
    return json.dumps(value)

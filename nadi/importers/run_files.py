"""Writing of the run file that files of another simulator are equivalent to."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from nadi import inputs
from nadi.configuration.run_config import RunConfig
from nadi.errors import OutputError
from nadi.importers.file_sections import Sections
from nadi.workload import TraceSet
from nadi.workload.trace_sets import write_set


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

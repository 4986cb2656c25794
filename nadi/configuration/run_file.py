"""Reading of run files: TOML to a validated configuration (`RunConfig`).

Every error raises ConfigError with one line: file, section and key, value, expected value. The message for an unknown
key suggests the nearest known key.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from nadi import inputs
from nadi.configuration.run_config import RunConfig, validated
from nadi.configuration.sections import CREDIT_KEYS, ECN_KEYS, FABRIC_KEYS, PFC_KEYS, given_default, known_model
from nadi.configuration.values import NamesFiles, naming_keys
from nadi.errors import ConfigError
from nadi.inputs.documents import read_toml, refuse_other_kinds
from nadi.inputs.files import MAX_KEY_PARTS
from nadi.inputs.units import parse_bytes
from nadi.pdes import RunError, balancing, fidelity, wire
from nadi.pdes.wire import SELECTIVE_PACKETS
from nadi.topologies import names_cluster
from nadi.topologies.clusters import Cluster, find

_EXPECTED = "a run file (TOML with [workload] and [topology])"


def load_config(
    path: Path | None,
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
    source: str = "nadi run",
) -> RunConfig:
    """Return the configuration of a TOML file, from whose folder relative paths count; None = no file.

    `sections` are further mappings of keys to values by section, and `overrides` texts "section.key=value" that replace
    values. `source` is what messages name if there is no file. Raises ConfigError if the file or a key is wrong,
    WorkloadError if model and plan do not fit each other.
    """
    tree = put_over(_read_toml(path) if path else {}, sections or {})
    for override in overrides:
        _apply(tree, override)
    source, folder = str(path or source), path.parent if path else Path()
    config = _validated(tree, source, folder)
    try:
        config = config.with_paths_from(folder).with_plans()
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    config.check_energy()
    return config


def _validated(sections: dict[str, Any], source: str, folder: Path) -> RunConfig:
    """Return the validated configuration of sections of keys from a `source`; cluster files count from `folder`."""
    if where := _find_nul(sections):
        raise ConfigError(f"{source}: {_place(where)}: found a NUL; expected text without one")
    tree = _with_cluster(_with_plug_ins_from(folder, sections))
    return validated(tree, source, _place).with_named(_named(sections))


def _named(sections: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a run file with those of their sections: "network.mtu", "jobs.0.traffic.load"."""
    for name, section in sections.items():
        entries = dict(enumerate(section)) if isinstance(section, list | tuple) else {None: section}
        for number, keys in entries.items():
            place = name if number is None else f"{name}.{number}"
            for key in keys if isinstance(keys, Mapping) else ():
                yield f"{place}.{key}"
                inner = keys[key] if isinstance(keys[key], Mapping) else ()
                yield from (f"{place}.{key}.{each}" for each in inner)


def put_over(tree: Mapping[str, Any], overriding_tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with the entries of `overriding_tree`: mappings merge, other values replace earlier ones."""
    merged = dict(tree)
    for key, value in overriding_tree.items():
        inner = merged.get(key)
        nested = inner if isinstance(inner, Mapping) else {}
        merged[key] = put_over(nested, value) if isinstance(value, Mapping) else value
    return merged


_COLLECTIVE_SECTIONS = ("network", "system", "topology")


def collective_config(topology: str, overrides: Sequence[str], sections: Mapping[str, Any] = {}) -> RunConfig:
    """Return the configuration of one collective on a fabric, without traces.

    Args:
        topology: The specification of the fabric.
        overrides: Values of [network] and [system], and topology.params, as "network.key=value".
        sections: The sections [network] and [system] of a run file, under the overrides.
    """
    tree = put_over({"workload": {"traces": "."}, "topology": {"spec": topology}}, sections)
    for override in overrides:
        section, *inner = (part.strip() for part in override.partition("=")[0].split("."))
        if section not in _COLLECTIVE_SECTIONS or (section == "topology" and inner[:1] != ["params"]):
            raise ConfigError(
                f"--set {override}: expected network.<key>=<value>, system.<key>=<value> or "
                "topology.params.<key>=<value>"
            )
        _apply(tree, override)
    return _validated(tree, "--set", Path())


def _read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a run file; a file of another known kind is refused by the name of its kind."""
    tree = read_toml(path, _EXPECTED, ConfigError, "run-file")
    if "workload" not in tree and "topology" not in tree:
        refuse_other_kinds(path, _EXPECTED, ConfigError, "run-file", "text")  # a text of comments only
    return tree


def _find_nul(value: object, keys_so_far: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the keys that lead to a text with a NUL, which is invalid in paths and names; empty if no text has one."""
    if isinstance(value, dict):
        entries = [(str(key), entry) for key, entry in value.items()]
    elif isinstance(value, list):
        entries = [(str(number), entry) for number, entry in enumerate(value)]
    else:
        return keys_so_far if isinstance(value, str) and "\0" in value else ()
    return next((keys for key, entry in entries if (keys := _find_nul(entry, (*keys_so_far, key)))), ())


def parse_override(override: str) -> tuple[str, Any]:
    """Return key and value of "section.key=value"; the value is TOML if it parses, else text.

    Args:
        override: The text of an option --set.
    """
    path, equals, text = override.partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or not 2 <= len(parts) <= MAX_KEY_PARTS or not all(parts):
        raise ConfigError(f"--set {override}: expected section.key=value, as network.window=1MiB")
    try:
        value = inputs.parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also a number of 5,000 digits
        value = text
    return ".".join(parts), value


def _apply(tree: dict[str, Any], override: str) -> None:
    """Set "section.key=value" in the tree.

    A number from 0 selects an entry of a list: "faults.0.slowdown=1.1". The number after the last entry appends one.
    """
    key, value = parse_override(override)
    parts = key.split(".")
    inner: Any = tree
    for number, part in enumerate(parts[:-1]):
        inner = _entry(inner, part, override, [] if part in _LISTS and number == 0 else {})
    if isinstance(inner, list):
        _entry(inner, parts[-1], override, None)
        inner[int(parts[-1])] = value
    else:
        inner[parts[-1]] = value


_LISTS = tuple(name for name, field in RunConfig.model_fields.items() if get_origin(field.annotation) is tuple)
"""Sections that a run file may repeat."""


def _entry(container: Any, key: str, override: str, default: object) -> Any:  # noqa: ANN401 - of TOML
    """Return the entry of a TOML table or list at a key or number; create it as `default` if it is missing."""
    if isinstance(container, list):
        places = f"0 to {len(container)}" if container else "0"
        if not key.isascii() or not key.isdecimal() or len(key) > len(str(len(container))) or int(key) > len(container):
            raise ConfigError(f"--set {override}: found {key!r} as a number of a list; expected {places}")
        if int(key) == len(container):
            container.append(default)
        entry = container[int(key)]
    else:
        entry = container.setdefault(key, default)
    if default is not None and not isinstance(entry, dict | list):
        raise ConfigError(f"--set {override}: {key} is a value, not a section")
    return entry


def _cluster_of(topology: Mapping[str, Any]) -> Cluster | None:
    """Return the cluster that a [topology] section names by its keys cluster, name or spec; None = no cluster."""
    for key in ("cluster", "name", "spec"):
        name = topology.get(key)
        if isinstance(name, str):
            name, _, parameters = name.partition(":")
            keys = {pair.partition("=")[0].strip() for pair in parameters.split(",")}
            if isinstance(topology.get("params"), dict):  # others are refused later
                keys |= topology["params"].keys()
            return find(name.strip()) if names_cluster(name.strip(), keys) else None
    return None


def _with_plug_ins_from(folder: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a run file with absolute paths of plug-ins, such as a cluster; relative ones from `folder`."""

    def changed(section: object, markers: Mapping[str, NamesFiles]) -> object:
        if isinstance(section, list):
            return [changed(each, markers) for each in section]
        if not isinstance(section, dict):
            return section
        named = {key: marker for key, marker in markers.items() if marker.is_plug_in and key in section}
        return section | {key: marker.change(section[key], absolute) for key, marker in named.items()}

    def absolute(path: str) -> str:
        return str((folder / path).absolute())

    return {name: changed(section, _NAMING_KEYS.get(name, {})) for name, section in tree.items()}


def _section_of(annotation: Any) -> type[BaseModel]:  # noqa: ANN401 - a type
    """Return the class of a section by the annotation of its field: itself, an optional one, or a tuple of them."""
    return next(kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type(BaseModel)))


_NAMING_KEYS = {name: naming_keys(_section_of(field.annotation)) for name, field in RunConfig.model_fields.items()}


def _with_cluster(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree of a run file with the cluster's defaults for keys that it does not contain."""
    topology = tree.get("topology")
    cluster = _cluster_of(topology) if isinstance(topology, dict) else None
    own = cluster.defaults() if cluster else {}
    given = {section: tree.get(section, {}) for section in own}
    if not own or not all(isinstance(section, dict) for section in given.values()):
        return tree
    own["network"] = _network_defaults(own["network"], given["network"])
    if {"peak_flops", "gpu"} & set(given["compute"]) or given["compute"].get("model") == "trace":
        own["compute"] = {}  # the run file sets how long compute takes
    return tree | {section: put_over(defaults, given[section]) for section, defaults in own.items()}


def _network_defaults(defaults: Mapping[str, Any], given_keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster's defaults that fit the given keys, without those of another model, switch or control."""
    switch = given_keys.get("switch")
    without = set(FABRIC_KEYS) | {"congestion_control"} if switch in {"output-queued", "credits"} else set()
    if switch in {"output-queued", "shared-buffer"}:
        without |= set(CREDIT_KEYS)
    for key, keys in (("pfc", PFC_KEYS), ("ecn", ECN_KEYS)):
        without |= set(keys) if given_keys.get(key) is False else set()
    if without or "congestion_control" in given_keys:
        without.add("congestion")
    if _is_window_too_large({**defaults, **given_keys}):
        without.add("window")
    model = known_model(given_keys.get("fidelity", fidelity.REFERENCE))
    if model is not None:
        without |= {key for key in defaults if not fidelity.accepts(model, key)}
    return {key: value for key, value in defaults.items() if key not in without}


def _is_window_too_large(keys: Mapping[str, Any]) -> bool:
    """Return whether a window exceeds the packets of selective repeat; validation reports wrong values later."""
    try:
        packets = parse_bytes(keys.get("window")) / parse_bytes(keys.get("mtu", given_default("mtu")))
        names = [keys.get("load_balancing", "ecmp")]
        names += [own.get("load_balancing", "ecmp") for own in keys.get("tiers", {}).values()]
        overtakes = any(balancing.balancing(name).reorders for name in names)
        overtakes = overtakes or keys.get("entropy", wire.entropy.FIXED.name) != wire.entropy.FIXED.name
        overtakes |= wire.detours.known(keys.get("routing", "minimal")).reorders
    except (AttributeError, ValueError, TypeError, ZeroDivisionError, RunError):
        return False
    return packets > SELECTIVE_PACKETS and (overtakes or keys.get("selective_repeat") is True)


def _place(keys: Sequence[str]) -> str:
    """Return ["network", "mtu"] as "[network] mtu"."""
    if keys and keys[-1].isdigit():
        return f"[{'.'.join(keys)}]"
    if len(keys) <= 1:
        return f"[{keys[0]}]" if keys else "run file"
    return f"[{'.'.join(keys[:-1])}] {keys[-1]}"

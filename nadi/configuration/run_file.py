"""Run files: TOML to a validated configuration (nadi/configuration/sections.py).

Whatever is wrong raises ConfigError with one line: file, section and key, what was found, what was expected. An unknown
key names the nearest known one.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import (
    BaseModel,
    ValidationError,
)

import inputs
from inputs.toml import MAX_KEY_PARTS
from nadi.configuration.from_model import settled
from nadi.configuration.input_files import changed_paths
from nadi.configuration.sections import (
    ECN_KEYS,
    FABRIC_KEYS,
    PFC_KEYS,
    NetworkSection,
    RunConfig,
    fidelity_like,
    fidelity_of,
    given_default,
)
from nadi.energy.table import read_table
from nadi.errors import ConfigError
from pdes import UNITS, RunError, balancing
from pdes.wire import SELECTIVE_PACKETS
from topologies.clusters import Cluster, find, is_cluster, with_path_from
from topologies.units import parse_bytes, short

_OUT_OF_RANGE = {"greater_than_equal", "less_than_equal", "finite_number"}


def load_config(
    path: Path | None, overrides: Sequence[str] = (), sections: Mapping[str, Mapping[str, Any]] | None = None
) -> RunConfig:
    """Read a run file.

    Args:
        path: the TOML file; its relative paths are relative to its folder. None = there is none, all is said by
            overrides and sections.
        overrides: "section.key=value", each in place of what the file says; their paths are relative to the file too.
        sections: the same as mappings of keys to values, before the overrides.

    Raises:
        ConfigError: the file cannot be read or is no TOML; an unknown section or key, a wrong value, a missing one.
        WorkloadError: the model or the plan is not known, or they do not go together.
    """
    tree = put_over(_read_toml(path) if path else {}, sections or {})
    source = path or "nadi run"
    for override in overrides:
        _apply(tree, override)
    named = _named(tree)
    where = _nul(tree)
    if where:
        raise ConfigError(f"{source}: {_place(where)}: found a NUL; expected text without one")
    folder = path.parent if path else Path()
    try:
        config = RunConfig.model_validate(_with_cluster(_with_cluster_from(folder, tree)))
    except ValidationError as error:
        raise ConfigError(f"{source}: {explain(error, RunConfig)}") from None
    try:
        found = settled(with_paths_from(config, folder))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    if found.energy is not None:
        read_table(found.energy.table)
    return found.with_named(named)


def put_over(tree: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with more in it; mappings within each other likewise, all else takes the place of what was there."""
    made = dict(tree)
    for key, value in more.items():
        inner = made.get(key)
        under = inner if isinstance(inner, Mapping) else {}
        made[key] = put_over(under, value) if isinstance(value, Mapping) else value
    return made


def network_section(overrides: Sequence[str], spec: str = "") -> NetworkSection:
    """A [network] section of defaults and "network.key=value", for commands without a run file.

    Args:
        overrides: "network.key=value", each.
        spec: of the fabric; where it names a cluster, the defaults are the cluster's.

    Raises:
        ConfigError: another section, an unknown key, or a wrong value.
    """
    tree: dict[str, Any] = {"network": {}}
    for override in overrides:
        _apply(tree, override)
    if set(tree) != {"network"}:
        raise ConfigError(f"--set {next(key for key in tree if key != 'network')}: expected network.<key>=<value>")
    try:
        return NetworkSection.model_validate(_with_cluster({**tree, "topology": {"spec": spec}})["network"])
    except ValidationError as error:
        raise ConfigError(f"--set: {explain(error, NetworkSection, ('network',))}") from None


_OF_A_COLLECTIVE = ("network", "system", "topology")


def collective_config(topology: str, overrides: Sequence[str]) -> RunConfig:
    """What a run file would say of one collective on a fabric; it names no traces.

    Args:
        topology: a spec, or the path of a file.
        overrides: "network.key=value", "system.key=value" and "topology.params.key=value".

    Raises:
        ConfigError: another section, an unknown key, or a wrong value.
    """
    tree: dict[str, Any] = {"workload": {"traces": "."}, "topology": {"spec": topology}}
    for override in overrides:
        section, *inner = (part.strip() for part in override.partition("=")[0].split("."))
        if section not in _OF_A_COLLECTIVE or (section == "topology" and inner[:1] != ["params"]):
            raise ConfigError(
                f"--set {override}: expected network.<key>=<value>, system.<key>=<value> or "
                "topology.params.<key>=<value>"
            )
        _apply(tree, override)
    named = _named(tree)
    where = _nul(tree)
    if where:
        raise ConfigError(f"--set: {_place(where)}: found a NUL; expected text without one")
    try:
        return RunConfig.model_validate(_with_cluster(tree)).with_named(named)
    except ValidationError as error:
        raise ConfigError(f"--set: {explain(error, RunConfig)}") from None


def explain(error: ValidationError, model: type[BaseModel], inside: tuple[str, ...] = ()) -> str:
    """The first complaint of a ValidationError as one line; unknown keys go before others.

    Args:
        error: what pydantic found.
        model: the model that was validated.
        inside: section that the model is.
    """
    complaints = sorted(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
    found = complaints[0]
    where = (*inside, *(str(part) for part in found["loc"]))
    if found["type"] == "extra_forbidden":
        known = _fields_at(model, where[len(inside) : -1])
        return f"{_place(where)}: unknown key; {_nearest(where[-1], known)}"
    if found["type"] == "missing":
        return f"{_place(where)}: missing; expected {_description(model, where[len(inside) :])}"
    reason = found.get("ctx", {}).get("error")
    if reason is not None:
        return f"{_place(where)}: {reason}"
    expected = _range(model, where[len(inside) :]) if found["type"] in _OUT_OF_RANGE else ""
    expected = expected or _lower_first(found["msg"]).replace("input should be", "expected")
    return f"{_place(where)}: found {short(found['input'])}; {expected}"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        found = inputs.parse_toml(inputs.read_text(path))
    except OSError as error:
        _refuse_others(path)
        raise ConfigError(f"{path}: {error.strerror or error}; expected a run file") from None
    except (ValueError, RecursionError) as error:  # also wrong UTF-8, a number of 5,000 digits, lists in lists in lists
        _refuse_others(path, "text")
        raise ConfigError(f"{path}: no TOML: {error}; expected a run file") from None
    if "workload" not in found and "topology" not in found:
        _refuse_others(path, "text")  # nothing but comments
    return found


def _refuse_others(path: Path, *also: str) -> None:
    """Name a file of another kind for what it is."""
    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"run-file", "toml", *also}:
        raise ConfigError(inputs.complaint(path, kind, "a run file (TOML with [workload] and [topology])"))


def _nul(value: object, where: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Where a text holds a NUL, which no path and no name can; nothing if none does."""
    if isinstance(value, dict):
        inner = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list):
        inner = [(str(number), each) for number, each in enumerate(value)]
    else:
        return where if isinstance(value, str) and "\0" in value else ()
    return next((found for key, each in inner if (found := _nul(each, (*where, key)))), ())


def _apply(tree: dict[str, Any], override: str) -> None:
    """Put "section.key=value" into the tree. The value is TOML where it can be, else text.

    An entry of a list is named by its number, from 0: "faults.0.slowdown=1.1". The number after the last one adds an
    entry.
    """
    path, equals, text = override.partition("=")
    parts = [part.strip() for part in path.split(".")]
    if not equals or not 2 <= len(parts) <= MAX_KEY_PARTS or not all(parts):
        raise ConfigError(f"--set {override}: expected section.key=value, as network.window=1MiB")
    try:
        value = inputs.parse_toml(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also a number of 5,000 digits
        value = text
    inner: Any = tree
    for number, part in enumerate(parts[:-1]):
        inner = _entered(inner, part, override, [] if part in _LISTS and number == 0 else {})
    if isinstance(inner, list):
        _entered(inner, parts[-1], override, None)
        inner[int(parts[-1])] = value
    else:
        inner[parts[-1]] = value


_LISTS = tuple(name for name, field in RunConfig.model_fields.items() if get_origin(field.annotation) is tuple)
"""Sections of which a run file has any number."""


def _entered(inner: Any, part: str, override: str, new: object) -> Any:  # noqa: ANN401 - of TOML
    """What a table or a list has at a key or a number; `new` where there is none yet."""
    if isinstance(inner, list):
        places = f"0 to {len(inner)}" if inner else "0"
        if not part.isascii() or not part.isdecimal() or len(part) > len(str(len(inner))) or int(part) > len(inner):
            raise ConfigError(f"--set {override}: found {part!r} as a number of a list; expected {places}")
        if int(part) == len(inner):
            inner.append(new)
        found = inner[int(part)]
    else:
        found = inner.setdefault(part, new)
    if new is not None and not isinstance(found, dict | list):
        raise ConfigError(f"--set {override}: {part} is a value, not a section")
    return found


def _named(tree: Mapping[str, Any]) -> list[str]:
    """Return the keys that the run file and overrides give, "network.mtu"."""
    return [f"{name}.{key}" for name, section in tree.items() if isinstance(section, Mapping) for key in section]


def cluster_of(topology: Mapping[str, Any]) -> Cluster | None:
    """The cluster that a [topology] section names, as its cluster, its name or in its spec; None = none."""
    for key in ("cluster", "name", "spec"):
        name = topology.get(key)
        if isinstance(name, str):
            name = name.partition(":")[0].strip()
            return find(name) if is_cluster(name) else None
    return None


def _with_cluster_from(folder: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with the file of its cluster as an absolute path, from the folder of the run file."""
    topology = tree.get("topology")
    if not isinstance(topology, dict) or not isinstance(topology.get("cluster"), str):
        return tree
    return tree | {"topology": topology | {"cluster": with_path_from(folder, topology["cluster"])}}


def _with_cluster(tree: dict[str, Any]) -> dict[str, Any]:
    """What a cluster sets stands in the other sections where the run file and --set say nothing."""
    topology = tree.get("topology")
    cluster = cluster_of(topology) if isinstance(topology, dict) else None
    own = cluster.defaults() if cluster else {}
    given = {section: tree.get(section, {}) for section in own}
    if not own or not all(isinstance(section, dict) for section in given.values()):
        return tree
    own["network"] = _network_defaults(own["network"], given["network"])
    own["compute"] = _compute_defaults(own["compute"], given["compute"])
    return tree | {section: _under(defaults, given[section]) for section, defaults in own.items()}


def _network_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that go together with what is given: what another model, switch or control lacks is left out."""
    without = set(FABRIC_KEYS) | {"congestion_control"} if given.get("switch") == "output-queued" else set()
    for key, keys in (("pfc", PFC_KEYS), ("ecn", ECN_KEYS)):
        without |= set(keys) if given.get(key) is False else set()
    if without or "congestion_control" in given:
        without.add("congestion")
    if _is_too_wide({**defaults, **given}):
        without.add("window")
    models = {"", fidelity_like(given.get("fidelity", "packet"))}
    return {key: value for key, value in defaults.items() if key not in without and fidelity_of(key) in models}


def _is_too_wide(keys: Mapping[str, Any]) -> bool:
    """Whether a window is more packets than selective repeat keeps; values that are wrong are complained of later."""
    try:
        packets = parse_bytes(keys.get("window")) / parse_bytes(keys.get("mtu", given_default("mtu")))
        overtakes = balancing.balancing(keys.get("load_balancing", "ecmp")).reorders
    except (ValueError, TypeError, ZeroDivisionError, RunError):
        return False
    return packets > SELECTIVE_PACKETS and (overtakes or keys.get("selective_repeat") is True)


def _compute_defaults(defaults: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster's GPU or roofline, where nothing else says how long compute takes."""
    is_open = not {"peak_flops", "gpu"} & set(given) and given.get("model") != "trace"
    return defaults if is_open else {}


def _under(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, over the defaults; tables in them likewise."""
    tables = {
        key: {**value, **given[key]}
        for key, value in defaults.items()
        if isinstance(value, dict) and isinstance(given.get(key), dict)
    }
    return {**defaults, **given, **tables}


def with_paths_from(config: RunConfig, folder: Path) -> RunConfig:
    """Relative paths become relative to the folder of the run file."""
    return changed_paths(config, lambda path: str(folder / path))


def _place(where: Sequence[str]) -> str:
    """["network", "mtu"] as "[network] mtu"."""
    if where and where[-1].isdigit():
        return f"[{'.'.join(where)}]"
    if len(where) <= 1:
        return f"[{where[0]}]" if where else "run file"
    return f"[{'.'.join(where[:-1])}] {where[-1]}"


def _nearest(key: str, known: Mapping[str, str]) -> str:
    unit = next((unit for unit in UNITS if key.endswith(unit)), "")
    if key.removesuffix(unit) in known:
        return f"nearest known key: {key.removesuffix(unit)}"
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.0)
    return f"nearest known key: {near[0]}" if near else "expected none"


def _fields_at(model: type[BaseModel], where: Sequence[str]) -> dict[str, str]:
    """Keys of a section, and what they are."""
    for part in (part for part in where if not part.isdigit()):
        annotation = model.model_fields[part].annotation
        annotation = next(iter(get_args(annotation)), annotation)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return {name: field.description or str(field.annotation) for name, field in model.model_fields.items()}


def _range(model: type[BaseModel], where: Sequence[str]) -> str:
    """What a number may be where that has two ends, else ""."""
    for part in where[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ""
        model = annotation
    metadata = model.model_fields[where[-1]].metadata if where[-1] in model.model_fields else []
    ends = [next((getattr(entry, end) for entry in metadata if hasattr(entry, end)), None) for end in ("ge", "le")]
    return "" if None in ends else f"expected {ends[0]} to {ends[1]}"


def _description(model: type[BaseModel], where: Sequence[str]) -> str:
    if len(where) == 1 and issubclass(model, RunConfig):
        return "this section"
    return _fields_at(model, where[:-1]).get(where[-1], "a value")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]

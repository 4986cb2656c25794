"""The devices, instances and edges of an InfraGraph file, in the same form for both dialects.

The dialect of the PyPI package has counts and edges between slices, `cpu[0:2]` to `pciesw[0]`, by the scheme `one2one`
or `many2many`. That of the documentation has connections in words, `server.0.nic.1.eth1.leafsw.0.port.4`: component and
index, or instance, index, component and index, then the link, then the other end. Indices there count the instances. A
component within another is the outer one here, so that a superchip is one component.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nadi import inputs
from nadi.inputs.limits import MAX_CABLES
from nadi.topologies.graph import TopologyError

EXPECTED = "InfraGraph (YAML or JSON with devices, instances and edges or connections)"
_LARGEST_BYTES = 1 << 24
_ELEMENT = re.compile(r"([\w-]{1,100})(?:\[(?:(-?\d{0,7})(:)?(-?\d{0,7})(?::(-?\d{0,7}))?)\])?")
_KEYS = {"name", "description", "device", "devices", "instances", "edges", "connections", "links"}
_LINK_KEYS = {"name", "description", "physical", "bandwidth", "latency"}
_DEEPEST = 8  # devices within each other
_MOST = 1 << 20  # components of one name, or that an end of an edge names

Part = tuple[str, ...]
"""Names and indices of a component from the device on, ("cx5", "0", "port", "1")."""


class InfraEdge(NamedTuple):
    """A link between two components."""

    a: Part
    b: Part
    link: str


class InfraDevice(NamedTuple):
    """A device."""

    kinds: dict[str, str]  # kind of each component by name: "xpu", "cpu", "nic", ...
    counts: dict[str, int]  # number of each component; none in the dialect of words
    edges: list[InfraEdge]
    links: dict[str, Mapping[str, Any]]


class InfraFile(NamedTuple):
    """The content of a file."""

    devices: dict[str, InfraDevice]
    instances: dict[str, str]  # device of each instance
    counts: dict[str, int]  # number of each instance, as far as it is said
    edges: list[InfraEdge]
    links: dict[str, Mapping[str, Any]]
    unread: tuple[str, ...]  # keys of the file and of its links that are not read


def read_infragraph(path: Path, label: str) -> InfraFile:
    """Return the content of a file, with devices that only other files of its folder have; TopologyError if wrong.

    Args:
        path: The file with the instances.
        label: The name of the network, with which errors begin.
    """
    content = _mapping(path)
    raw = _devices(content, label)
    instances = {_text(i, "name", label): _text(i, "device", label) for i in _list(content, "instances", label)}
    missing = set(instances.values()) - set(raw)
    for other in sorted({*path.parent.glob("*.yaml"), *path.parent.glob("*.yml")} - {path}) if missing else ():
        try:
            found = _devices(_mapping(other), label)
        except TopologyError:
            continue
        raw |= {name: device for name, device in found.items() if name in missing and name not in raw}
    devices: dict[str, InfraDevice] = {}
    for name in raw:
        _add_device(name, raw, devices, label)
    counts = {
        _text(i, "name", label): _count(i, label)
        for i in _list(content, "instances", label)
        if i.get("count") is not None
    }
    found_edges: list[InfraEdge] = []
    for words in _connections(content, label):
        found_edges.append(_words_edge(words, 2, lambda part: part, label))
        for instance, *_ in (found_edges[-1].a, found_edges[-1].b):
            if instance not in instances:
                instances[instance] = _unused_device(instance, devices, instances, label)
    for edge in _list(content, "edges", label):
        ends = [_instance_ends(_map(edge, end, label), instances, counts, devices, label) for end in ("ep1", "ep2")]
        found_edges += _paired(ends[0], ends[1], edge, label, len(found_edges))
    if not instances:  # a device alone
        instances = {name: name for name, device in devices.items() if "xpu" in device.kinds.values()}
    counts |= {name: 1 for name in instances if name not in counts and not found_edges}
    links = _links(content, label)
    every = [link for own in (links, *(device.links for device in devices.values())) for link in own.values()]
    return InfraFile(devices, instances, counts, found_edges, links, _unread(content, every))


def _mapping(path: Path) -> dict[str, Any]:
    """Return the mapping of a file, without the word `infrastructure` around it."""
    from nadi.inputs.mappings import parse_mapping  # noqa: PLC0415 - imports yaml, 40 ms

    kind = inputs.kind_of(path)
    if kind is not None and kind.key not in {"infragraph", "text", "json", "csv", "toml", "empty"}:
        raise TopologyError(inputs.complaint(path, kind, EXPECTED))
    try:
        content = parse_mapping(inputs.read_bytes(path, _LARGEST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise TopologyError.at(path, f"{error.strerror or error}", EXPECTED) from None
    except ValueError as error:
        reason = "no text" if isinstance(error, UnicodeDecodeError) else error
        raise TopologyError.at(path, f"{reason}", EXPECTED) from None
    inner = content.get("infrastructure", content)
    if not isinstance(inner, dict):
        raise TopologyError.at(path, "infrastructure is no mapping", EXPECTED)
    return inner


def _devices(content: Mapping[str, Any], label: str) -> dict[str, Mapping[str, Any]]:
    key = "device" if isinstance(content.get("device"), list) else "devices"
    return {_text(device, "name", label): device for device in _list(content, key, label)}


def _list(content: Mapping[str, Any], key: str, label: str) -> list[Mapping[str, Any]]:
    """Return a list of mappings, [] without the key."""
    found = content.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise TopologyError.at(label, f"{key} is no list of mappings", EXPECTED)
    return found


def _map(content: Mapping[str, Any], key: str, label: str) -> Mapping[str, Any]:
    found = content.get(key) or {}
    if not isinstance(found, dict):
        raise TopologyError.at(label, f"{key} is no mapping", EXPECTED)
    return found


def _text(content: Mapping[str, Any], key: str, label: str) -> str:
    found = content.get(key)
    if not isinstance(found, str) or not 0 < len(found) <= 200:
        raise TopologyError.at(label, f"{key} {str(found)[:40]!r}", "a text")
    return found


def _count(content: Mapping[str, Any], label: str, default: str = "1") -> int:
    text = str(content.get("count") or default)
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= _MOST):
        raise TopologyError.at(label, f"count {text[:40]!r}", f"a whole number to {_MOST}")
    return int(text)


def _links(content: Mapping[str, Any], label: str) -> dict[str, Mapping[str, Any]]:
    return {_text(link, "name", label): link for link in _list(content, "links", label)}


def _unread(content: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the keys of a file and of links that are not read, sorted."""
    found = {str(key) for key in content} - _KEYS
    for link in links:
        found |= {f"links.{key}" for key in link if key not in _LINK_KEYS}
        physical = link.get("physical")
        if isinstance(physical, dict):
            found |= {f"links.physical.{key}" for key in physical if key not in _LINK_KEYS}
    return tuple(sorted(found))


def _connections(content: Mapping[str, Any], label: str) -> list[str]:
    found = content.get("connections") or []
    if not isinstance(found, list) or not all(isinstance(words, str) for words in found):
        raise TopologyError.at(label, "connections are no list of texts", EXPECTED)
    return found


def _add_device(
    name: str, raw: Mapping[str, Mapping[str, Any]], devices: dict[str, InfraDevice], label: str, depth: int = 0
) -> None:
    """Add a device to `devices`, after those that it has as components."""
    if name in devices or depth > _DEEPEST:
        return
    content = raw[name]
    device = InfraDevice({}, {}, [], _links(content, label))
    outer: dict[str, tuple[str, int]] = {}  # of a component within another: that one, and how many are in it
    for component in _list(content, "components", label):
        own = _text(component, "name", label)
        kind = component.get("choice") or component.get("type") or "custom"
        custom = component.get("custom")
        device.kinds[own] = str(custom.get("type") or kind if isinstance(custom, dict) else kind)
        device.counts[own] = _count(component, label) if component.get("count") is not None else 0
        if kind == "device" and own in raw:
            _add_device(own, raw, devices, label, depth + 1)
        for inner in _list(component, "components", label):
            outer[_text(inner, "name", label)] = own, max(_count(inner, label), 1)
    devices[name] = device

    def within(part: Part) -> Part:
        if part[0] in outer:
            # with two GPUs to a superchip, GPU 5 is in superchip 2
            return outer[part[0]][0], str(int(part[1]) // outer[part[0]][1])
        return part

    for words in _connections(content, label):
        device.edges.append(_words_edge(words, 1, within, label))
    for edge in _list(content, "edges", label):
        ends = []
        for key in ("ep1", "ep2"):
            end = _map(edge, key, label)
            path = f"{end['device']}.{end.get('component')}" if end.get("device") else str(end.get("component"))
            ends.append(_ends(path, name, devices, label))
        device.edges.extend(_paired(ends[0], ends[1], edge, label, len(device.edges)))


def _words_edge(words: str, pairs: int, within: Callable[[Part], Part], label: str) -> InfraEdge:
    """Return the edge of a connection in words; pairs: the fewest (name, index) of an end."""
    parts = tuple(words.split("."))
    # server.0.nic.1.eth1.leafsw.0.port.4 has nine words: four of one end, the link in the middle, four of the other
    # end. Every second word of an end is an index.
    indices = parts[1 : len(parts) // 2 : 2] + parts[len(parts) // 2 + 2 :: 2]
    half = len(parts) // 2
    if len(parts) % 2 == 0 or half % 2 or not 2 * pairs <= half <= 16 or not all(map(_is_index, indices)):
        form = "instance.0.component.0.link.instance.1.component.0" if pairs > 1 else "component.0.link.component.0"
        raise TopologyError.at(label, f"connection {words[:60]!r}", f"the form {form}")
    return InfraEdge(within(parts[:half]), within(parts[half + 1 :]), parts[half])


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 8


def _ends(path: str, device: str, devices: Mapping[str, InfraDevice], label: str) -> list[Part]:
    """Return the components that a path of slices, such as "cx5[0:2].port[0]", names in a device."""
    found: list[Part] = [()]
    for element in path.split("."):
        match = _ELEMENT.fullmatch(element)
        known = devices.get(device)
        if match is None or known is None or match[1] not in known.counts:
            raise TopologyError.at(label, f"{path[:60]!r} of {device[:60]}", "components of the device")
        indices = _slice(match, known.counts[match[1]], path, label)
        if len(found) * len(indices) > _MOST:
            raise TopologyError.at(label, f"{path[:60]!r}", f"at most {_MOST} components")
        found = [(*part, match[1], str(index)) for part in found for index in indices]
        device = match[1]
    return found


def _instance_ends(
    end: Mapping[str, Any],
    instances: Mapping[str, str],
    counts: Mapping[str, int],
    devices: Mapping[str, InfraDevice],
    label: str,
) -> list[Part]:
    """Return the components that an end of an edge between instances names."""
    instance = _text(end, "instance", label)
    match = _ELEMENT.fullmatch(instance)
    if match is None or match[1] not in instances:
        raise TopologyError.at(label, f"instance {instance[:60]!r}", "one of the file")
    indices = _slice(match, counts.get(match[1], 1), instance, label)
    parts = _ends(_text(end, "component", label), instances[match[1]], devices, label)
    if len(indices) * len(parts) > _MOST:
        raise TopologyError.at(label, f"{instance[:60]!r}", f"at most {_MOST} components")
    return [(match[1], str(index), *part) for index in indices for part in parts]


def _slice(match: re.Match[str], count: int, path: str, label: str) -> range:
    """Return the indices of a slice of Python; all of `count` without one."""
    _, begin, colon, end, step = match.groups()
    if begin is None:
        return range(count)
    numbers = [int(text) if text and text != "-" else None for text in (begin, end, step)]
    if colon is None:
        index = numbers[0] if numbers[0] is not None else count
        if not -count <= index < count:
            raise TopologyError.at(label, f"{path[:60]!r}", f"indices below {count}")
        return range(index % count, index % count + 1)
    if numbers[2] == 0:
        raise TopologyError.at(label, f"{path[:60]!r}", "a step other than 0")
    # as in Python, bounds beyond the components are cut off: [0:9] of four components is all four
    return range(count)[slice(*numbers)]


def _paired(
    first: list[Part], second: list[Part], edge: Mapping[str, Any], label: str, already: int
) -> Iterator[InfraEdge]:
    """Return the edges between two lists of components by the scheme of an edge."""
    scheme, link = edge.get("scheme"), str(edge.get("link") or "")
    if scheme == "many2many":
        if already + len(first) * len(second) > MAX_CABLES:
            raise TopologyError.at(label, f"more than {MAX_CABLES} edges", "fewer")
        # in a full mesh both ends name all components, and each pairs with itself, too
        return (InfraEdge(a, b, link) for a in first for b in second if a != b)
    if scheme != "one2one":
        raise TopologyError.at(label, f"scheme {str(scheme)[:40]!r}", "one2one or many2many")
    return (InfraEdge(a, b, link) for a, b in zip(first, second, strict=False) if a != b)


def _unused_device(instance: str, devices: Mapping[str, InfraDevice], instances: Mapping[str, str], label: str) -> str:
    """Return the device of an instance that the file does not list: its only one that no instance is of."""
    unused = sorted(set(devices) - set(instances.values()))
    if len(unused) != 1:
        raise TopologyError.at(label, f"instance {instance[:60]!r}", "one of the file")
    return unused[0]

"""htsim's connection matrices (.cm): flows with start times or triggers, and links that fail.

    Nodes 128
    Connections 2
    Triggers 1
    0->64 id 1 start 0 size 2000000 send_done_trigger 1
    0->65 id 2 trigger 1 size 2000000
    trigger id 1 oneshot

A start is in picoseconds. A trigger starts flows when flows that name it are done, at their sender (send_done_trigger,
when all is acknowledged) or receiver: `oneshot` after one flow, `barrier` after `count` flows. Source:
ConnectionMatrix::load (connection_matrix.cpp).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from nadi import inputs
from nadi.inputs.limits import LONGEST_PS, MAX_BYTES, MAX_NPUS
from nadi.workload.errors import WorkloadError

_EXPECTED = "a connection matrix of htsim (Nodes, Connections, then flows)"
_COUNTS = {"Nodes": "nodes", "Connections": "flows", "Triggers": "triggers", "Failures": "failures"}
_ENDS = re.compile(r"(\d{1,9})->(\d{1,9})")
_FLOW_WORDS = {  # words of a flow and the maxima of their numbers
    "id": 2**32 - 1,
    "start": LONGEST_PS,
    "size": MAX_BYTES,
    "trigger": 2**32 - 1,
    "send_done_trigger": 2**32 - 1,
    "recv_done_trigger": 2**32 - 1,
    "prio": 2**32 - 1,
}
_TRIGGER_KINDS = ("oneshot", "multishot", "barrier")
_SWITCH_TYPES = ("TOR", "AGG", "CORE")
_MAX_FLOWS = 1 << 22  # tags of messages have 24 bits, and triggers between NPUs need some


class HtsimFlow(NamedTuple):
    """A flow of a matrix."""

    place: str  # file and line, for messages
    src: int  # number of the sending node
    dst: int  # number of the receiving node
    bytes: int  # size in bytes
    flow_id: int  # number of the flow in the file, 0 = none
    start_ps: int  # start in picoseconds; -1 = by a trigger
    trigger: int  # trigger that starts the flow, 0 = none
    send_done: int  # trigger that the flow fires when its sender has all acknowledgements, 0 = none
    recv_done: int  # trigger that the flow fires when its receiver has all bytes, 0 = none


class FailedLink(NamedTuple):
    """An uplink that carries nothing."""

    place: str  # file and line, for messages
    switch_type: str  # TOR, AGG or CORE
    switch: int  # number of the switch among those of its type
    link: int  # number of the uplink


class ConnectionMatrix(NamedTuple):
    """The content of a file."""

    path: Path  # path of the file
    nodes: int  # number of nodes
    flows: tuple[HtsimFlow, ...]  # flows in the order of the file
    counts: dict[int, int]  # number of activations after which each trigger fires
    failures: tuple[FailedLink, ...]  # links that fail


def read_connections(path: Path) -> ConnectionMatrix:
    """Read a file; raise WorkloadError if it cannot be read, or a line or count is wrong."""
    with inputs.refusing(path, _EXPECTED, WorkloadError, UnicodeDecodeError):
        text = inputs.read_text(path)
    header = dict.fromkeys(_COUNTS.values(), 0)
    flows: list[HtsimFlow] = []
    counts: dict[int, int] = {}
    failures: list[FailedLink] = []
    triggers = 0
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        place = f"{path}: line {number}"
        if words[0] in _COUNTS:
            maximum = MAX_NPUS if words[0] == "Nodes" else _MAX_FLOWS
            header[_COUNTS[words[0]]] = _whole(place, words[0], words[1:], maximum)
        elif words[0] == "trigger":
            _read_trigger(place, words[1:], counts)
            triggers += 1
        elif words[0] == "failure":
            failures.append(_failure(place, words[1:]))
        else:
            flows.append(_flow(place, words, header["nodes"]))
    found = {"flows": len(flows), "triggers": triggers, "failures": len(failures)}
    for word, name in _COUNTS.items():
        if name in found and found[name] != header[name]:
            raise WorkloadError(f"{path}: {found[name]} {name}; expected {header[name]}, as {word} has it")
    if header["nodes"] < 2 or not flows:
        raise WorkloadError(f"{path}: {header['nodes']} nodes and {len(flows)} flows; expected {_EXPECTED}")
    return ConnectionMatrix(path, header["nodes"], tuple(flows), counts, tuple(failures))


def _flow(place: str, words: Sequence[str], nodes: int) -> HtsimFlow:
    """Return the flow of a line."""
    ends = _ENDS.fullmatch(words[0])
    if ends is None:
        raise WorkloadError(f"{place}: found {words[0][:40]!r}; expected SRC->DST, trigger or failure")
    src, dst = int(ends[1]), int(ends[2])
    if max(src, dst) >= nodes or src == dst:
        raise WorkloadError(f"{place}: flow from {src} to {dst}; expected two different nodes below Nodes {nodes}")
    found: dict[str, int] = {}
    for word, value in _pairs(place, words[1:], ("addon",)):
        if word not in _FLOW_WORDS or word in found:
            kind = "a second" if word in found else "unknown"
            raise WorkloadError(f"{place}: {kind} {word[:40]!r}; expected each once of {', '.join(_FLOW_WORDS)}")
        # htsim reads a start as a floating-point number
        text = value.removesuffix(".0") if word == "start" else value
        found[word] = _whole(place, word, [text], _FLOW_WORDS[word])
    if not found.get("size"):
        raise WorkloadError(f"{place}: no size, which htsim takes for a flow without end; expected a size in bytes")
    if ("start" in found) == ("trigger" in found):
        raise WorkloadError(
            f"{place}: found {'both' if 'start' in found else 'neither'} of start and trigger; expected one"
        )
    numbers = (found.get(word, 0) for word in ("trigger", "send_done_trigger", "recv_done_trigger"))
    return HtsimFlow(place, src, dst, found["size"], found.get("id", 0), found.get("start", -1), *numbers)


def _read_trigger(place: str, words: Sequence[str], counts: dict[int, int]) -> None:
    """Add to `counts` the number of activations of the trigger of a line."""
    kinds = [word for word in words if word in _TRIGGER_KINDS]
    found = {}
    for word, value in _pairs(place, words, _TRIGGER_KINDS):
        if word not in {"id", "count"} or word in found:
            raise WorkloadError(
                f"{place}: found {word[:40]!r}; expected id, count and one of {', '.join(_TRIGGER_KINDS)}"
            )
        found[word] = _whole(place, word, [value], 2**32 - 1)
    if len(kinds) != 1 or not found.get("id") or found["id"] in counts:
        raise WorkloadError(f"{place}: expected an id of its own above 0 and one of {', '.join(_TRIGGER_KINDS)}")
    if kinds == ["barrier"] and not found.get("count"):
        raise WorkloadError(f"{place}: barrier without count; expected the number of flows that it waits for")
    counts[found["id"]] = found["count"] if kinds == ["barrier"] else 1


def _failure(place: str, words: Sequence[str]) -> FailedLink:
    """Return the link that fails of a line."""
    found = dict(_pairs(place, words, ()))
    kind = found.pop("switch_type", "")
    if kind not in _SWITCH_TYPES or set(found) != {"switch_id", "link_id"}:
        raise WorkloadError(
            f"{place}: expected switch_type {'|'.join(_SWITCH_TYPES)}, switch_id and link_id, each once"
        )
    numbers = (_whole(place, word, [found[word]], MAX_NPUS) for word in ("switch_id", "link_id"))
    return FailedLink(place, kind, *numbers)


def _pairs(place: str, words: Sequence[str], alone: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word and the word behind it, without the words that stand alone."""
    rest = [word for word in words if word not in alone]
    if len(rest) % 2:
        raise WorkloadError(f"{place}: nothing behind {rest[-1][:40]!r}; expected words with a value each")
    yield from zip(rest[::2], rest[1::2], strict=True)


def _whole(place: str, word: str, values: Sequence[str], maximum: int) -> int:
    """Return the one value of a word as a whole number."""
    text = " ".join(values)
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= maximum):
        raise WorkloadError(f"{place}: {word} is {text[:40]!r}; expected a whole number from 0 to {maximum}")
    return int(text)

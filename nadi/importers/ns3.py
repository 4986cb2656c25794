"""Configuration files of HPCC's ns-3 (`KEY value ...` per line), which ASTRA-sim's ns-3 back end and SimAI inherit.

Sources: ReadConf and SetupNetwork of astra-sim/astra-network-ns3 (scratch/common.h) and of aliyun/SimAI
(network_frontend/ns3/common.h); alibaba-edu/High-Precision-Congestion-Control.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nadi import inputs
from nadi.errors import ConfigError
from nadi.importers import FileSections
from nadi.inputs import units
from nadi.pdes import RunError, congestion, wire
from nadi.topologies import SWITCH, Graph

CONTROLS = {1: "dcqcn", 3: "hpcc", 7: "timely", 8: "dctcp", 10: "hpcc"}
"""Congestion control by CC_MODE; other modes match no branch in ns-3 and mean none. 10 is HPCC with PINT."""
_HEADER_BYTES, _ACK_BYTES = 48, 60  # PPP 14, IPv4 20, UDP 8, sequence 6; an acknowledgement is padded to 60
_RESUME_OFFSET = "3KiB"  # SwitchMmu's resume_offset
_PFC_ALPHA = 1 / 8  # SetupNetwork's pfc_a_shift of 3
_FIRST_SEND_PS = 2 * units.PS_PER_S  # LINK_DOWN counts from second 2
_MAPS = ("KMIN_MAP", "KMAX_MAP", "PMAX_MAP")
_FLAGS = ("ENABLE_QCN", "HAS_WIN")
_RATES = ("RATE_AI", "RATE_HAI", "MIN_RATE")
_TRANSLATED = {
    *("PACKET_PAYLOAD_SIZE", "CC_MODE", "BUFFER_SIZE", "ERROR_RATE_PER_LINK", "LINK_DOWN"),
    *(*_MAPS, *_FLAGS, *_RATES),
}
_SAME_HERE = {
    *("L2_ACK_INTERVAL 1", "GLOBAL_T 1", "VAR_WIN 1", "RATE_BOUND 1", "ACK_HIGH_PRIO 1", "L2_BACK_TO_ZERO 0"),
    *("USE_DYNAMIC_PFC_THRESHOLD 1", "MULTI_RATE 0", "SAMPLE_FEEDBACK 0", "INT_MULTI 1", "NIC_TOTAL_PAUSE_TIME 0"),
    *("HEADROOM_FACTOR 3",),
}
"""Values of keys without a counterpart that describe what the simulator does in any case."""
_OTHER_KEYS = {
    *("ALPHA_RESUME_INTERVAL", "RATE_DECREASE_INTERVAL", "CLAMP_TARGET_RATE", "RP_TIMER", "EWMA_GAIN"),
    *("FAST_RECOVERY_TIMES", "DCTCP_RATE_AI", "L2_CHUNK_SIZE", "L2_ACK_INTERVAL", "L2_BACK_TO_ZERO", "GLOBAL_T"),
    *("VAR_WIN", "FAST_REACT", "U_TARGET", "MI_THRESH", "INT_MULTI", "MULTI_RATE", "SAMPLE_FEEDBACK", "PINT_LOG_BASE"),
    *("PINT_PROB", "RATE_BOUND", "ACK_HIGH_PRIO", "USE_DYNAMIC_PFC_THRESHOLD", "NIC_TOTAL_PAUSE_TIME", "PAUSE_TIME"),
    *("DATA_RATE", "LINK_DELAY", "SIMULATOR_STOP_TIME", "ENABLE_TRACE", "TOPOLOGY_FILE", "FLOW_FILE", "TRACE_FILE"),
    *("TRACE_OUTPUT_FILE", "FCT_OUTPUT_FILE", "PFC_OUTPUT_FILE", "QLEN_MON_FILE", "QLEN_MON_START", "QLEN_MON_END"),
    *("BW_MON_FILE", "RATE_MON_FILE", "CNP_MON_FILE", "MON_START", "MON_END", "QP_MON_INTERVAL", "BW_MON_INTERVAL"),
    *("QLEN_MON_INTERVAL", "HEADROOM_FACTOR"),
}
_UNLIMITED_WINDOW = "1GiB"


class Ns3Config(NamedTuple):
    """The words behind each key of a configuration file."""

    path: Path  # path of the file
    words: Mapping[str, list[str]]  # words by key; of a key that occurs twice, the last ones

    def number(self, key: str, default: float, minimum: float = 0.0, maximum: float = 1e18) -> float:
        """Return the number of a key within bounds, or the default if the file lacks the key."""
        if key not in self.words:
            return default
        return self._number(key, (self.words[key] or [""])[0], minimum, maximum)

    def rate_map(self, key: str) -> dict[int, float]:
        """Return the values by rate in bits per second of `KEY count rate value rate value ...`."""
        words = self.words.get(key, [])
        count = int(self._number(key, words[0] if words else "", 0, 1000))
        if len(words) < 1 + 2 * count:
            raise ConfigError(f"{self.path}: {key} has {len(words) - 1} words behind its count, expected {2 * count}")
        pairs = [self._number(key, word, 0, 1e18) for word in words[1 : 1 + 2 * count]]
        return {int(rate): value for rate, value in zip(pairs[::2], pairs[1::2], strict=True)}

    def control_number(self, key: str) -> float:
        """Return the number of a key of a congestion control, a rate in Mb/s."""
        word = (self.words[key] or [""])[0]
        if key not in _RATES:
            return self._number(key, word, 0, 1e18)
        try:
            return units.parse_rate(word) / 1e6
        except ValueError as error:
            raise ConfigError(f"{self.path}: {key}: {error}") from None

    def _number(self, key: str, word: str, minimum: float, maximum: float) -> float:
        try:
            value = float(word) if len(word) < 40 else float("nan")
        except ValueError:
            value = float("nan")
        if not minimum <= value <= maximum:
            raise ConfigError(f"{self.path}: {key} is {word[:40]!r}, expected a number from {minimum:g} to {maximum:g}")
        return value


def read_ns3(path: Path) -> Ns3Config:
    """Return the configuration in a file; raise ConfigError if it is none."""
    with inputs.refusing(path, "a configuration of ns-3 (KEY value per line)", ConfigError, UnicodeDecodeError):
        lines = [line.partition("{")[0].split() for line in inputs.read_text(path).splitlines()]
    words = {line[0]: line[1:] for line in lines if line}
    if not words.keys() & (_TRANSLATED | _OTHER_KEYS):
        raise ConfigError(f"{path}: no known key, expected a configuration of ns-3, as CC_MODE 1")
    return Ns3Config(path, words)


def ns3_part(config: Ns3Config, graph: Graph) -> FileSections:
    """Return the sections [network] and [[faults]] for a configuration on a fabric, and the keys without effect."""
    name = CONTROLS.get(int(config.number("CC_MODE", 1, 0, 1000)), "none")
    parameters = _parameters(config, name)
    has_ecn = bool(config.number("ENABLE_QCN", 1))
    network: dict[str, Any] = {
        "mtu": int(config.number("PACKET_PAYLOAD_SIZE", 1000, 1, 65535)),
        "header": f"{_HEADER_BYTES}B",
        "ack": f"{_ACK_BYTES}B",
        "acknowledged": True,
        "switch": "shared-buffer",
        "buffer": f"{config.number('BUFFER_SIZE', 16, 0.001, 4096):g}MiB",
        "pfc_alpha": _PFC_ALPHA,
        "pfc_resume_offset": _RESUME_OFFSET,
        "ecn": has_ecn,
        "congestion_control": name,
        "nvlink_framing": False,
    }
    if parameters:
        network["congestion"] = parameters
    if not config.number("HAS_WIN", 1):
        network["window"] = _UNLIMITED_WINDOW
    translated = (_TRANSLATED - set(_RATES)) | parameters.keys()
    unused = [key for key in config.words if key not in translated and not _says_what_holds(config, key)]
    if has_ecn:
        network |= _thresholds(config, graph)
    headroom, phrase = _headroom(graph, config.number("BUFFER_SIZE", 16) * units.MIB)
    network |= headroom
    unused += phrase
    faults = [*_errors(config, graph), *_broken_link(config, graph)]
    return FileSections({"network": network} | ({"faults": faults} if faults else {}), tuple(unused))


def _says_what_holds(config: Ns3Config, key: str) -> bool:
    """Return whether the value of a key without counterpart is what the simulator does in any case."""
    return f"{key} {' '.join(config.words[key][:1])}" in _SAME_HERE or key.endswith(("_FILE", "ENABLE_TRACE"))


def _parameters(config: Ns3Config, name: str) -> dict[str, float]:
    """Return the numbers of the keys that belong to a congestion control, as [network] congestion takes them."""
    aliases = {key for declared in congestion.parameters(name).values() for key in declared.aliases}
    found = {key: config.control_number(key) for key in config.words if key in aliases}
    try:
        congestion.control(name, found)
    except RunError as error:
        raise ConfigError(f"{config.path}: {error}") from None
    return found


def _thresholds(config: Ns3Config, graph: Graph) -> dict[str, Any]:
    """Return ecn_by_rate for the rates of switch ports, which the maps must have; they are in units of 1,000 bytes."""
    of_switch = graph.node_kind[graph.link_src] == SWITCH
    maps = [config.rate_map(key) for key in _MAPS]
    found: dict[str, list[Any]] = {}
    for rate in np.unique(graph.link_rate_bps[of_switch]).tolist():
        for key, values in zip(_MAPS, maps, strict=True):
            if rate not in values:
                raise ConfigError(f"{config.path}: {key} has no {rate}, expected each rate of a switch's links")
        kmin, kmax, pmax = (values[rate] for values in maps)
        found[units.format_rate(rate)] = [f"{kmin:g}kB", f"{kmax:g}kB", pmax]
    return {"ecn_by_rate": found} if found else {}


def _headroom(graph: Graph, buffer_bytes: float) -> tuple[dict[str, Any], list[str]]:
    """Return a smaller pfc_headroom than follows from rate and delay, and a phrase, if a switch has no room for those.

    ns-3 takes 3 rate x delay for each port of a switch, runs even if they exceed the buffer, and then pauses no port.
    NVLink within a domain has no buffers that pause.
    """
    is_ethernet = ~wire.is_in_domain(graph)
    need_bytes = 3 * graph.link_rate_bps / units.BITS_PER_BYTE * graph.link_delay_ps / units.PS_PER_S * is_ethernet
    # float64[switches]: bytes that the headrooms of all ingress ports of a switch need
    of_switch = np.bincount(graph.link_dst, need_bytes, graph.nodes)[graph.npus :]
    if not len(of_switch) or of_switch.max() < buffer_bytes:
        return {}, []
    ports = int(np.bincount(graph.link_dst, is_ethernet, graph.nodes)[graph.npus :].max())
    # a quarter of the buffer for the headrooms of all ports together
    headroom = f"{int(buffer_bytes / (4 * ports))}B"
    return {"pfc_headroom": headroom}, [
        f"headrooms of {units.format_bytes(int(of_switch.max()))} ({headroom} per port)"
    ]


def _errors(config: Ns3Config, graph: Graph) -> Iterator[dict[str, Any]]:
    """Yield a fault of each cable for ERROR_RATE_PER_LINK above 0."""
    error_rate = config.number("ERROR_RATE_PER_LINK", 0, 0, 1)
    # links 2c and 2c + 1 are the two directions of a cable, which has one fault
    for link in range(0, graph.links if error_rate else 0, 2):
        yield {"at": "0ps", "link": link, "error_rate": error_rate}


def _broken_link(config: Ns3Config, graph: Graph) -> Iterator[dict[str, Any]]:
    """Yield the fault of LINK_DOWN, whose nodes have the numbers of the topology's file; none for time 0."""
    # time and two nodes; missing ones are 0, and time 0 means that no link breaks
    words = [*config.words.get("LINK_DOWN", []), "0", "0", "0"][:3]
    at_us, *ends = (Ns3Config(config.path, {"LINK_DOWN": [word]}).number("LINK_DOWN", 0, 0, 1e9) for word in words)
    if at_us:
        node_of = {number: node for node, number in enumerate(graph.numbers or range(graph.nodes))}
        unknown = [int(end) for end in ends if int(end) not in node_of]
        if unknown:
            raise ConfigError(f"{config.path}: LINK_DOWN names node {unknown[0]}, expected nodes of the topology")
        a, b = (node_of[int(end)] for end in ends)
        at = units.format_time(_FIRST_SEND_PS + round(at_us * units.PS_PER_US))
        yield {"at": at, "link": f"{a}-{b}", "state": "down"}

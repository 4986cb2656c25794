"""Settings of switches and congestion control for the engine, and their limits on a fabric."""

import importlib
from typing import Any

import numpy as np

import pdes
from inputs.units import PS_PER_BYTE_AT_1_BPS
from nadi.configuration.bounds import MAX_TELEMETRY_BUFFER_BYTES, MAX_WINDOW_PACKETS
from nadi.configuration.sections import NetworkSection, engine_settings
from nadi.errors import ConfigError
from pdes import SharedBuffer, balancing, congestion, disciplines
from pdes.wire import (
    ECHO_MASK,
    FLIT_BYTES,
    MAX_BATCH,
    MAX_SET,
    MAX_WIRE_BYTES,
    SELECTIVE_PACKETS,
    Fabric,
    classes_in_use,
    headrooms,
    round_trip_ps,
    window_packets,
)
from topologies import Graph
from topologies.units import format_bytes, format_time

WITHOUT_SWITCHES = frozenset({"rtt"})
"""Signals that reach a sender without support of the switches."""


def shared_buffer(network: NetworkSection) -> SharedBuffer | None:
    """Return the shared buffer of the switches; None if they have output queues.

    Raises:
        ConfigError: The discipline does not exist.
    """
    if network.switch == "output-queued":
        return None
    settings = engine_settings(SharedBuffer, network)
    try:
        chosen = {"discipline": disciplines.discipline(settings["discipline"])} if "discipline" in settings else {}
    except pdes.RunError:
        known = ", ".join(("auto", *disciplines.names()))
        raise ConfigError(f"[network] discipline: found {network.discipline!r}; expected one of {known}") from None
    return SharedBuffer(**settings | chosen)


def control(network: NetworkSection) -> congestion.Control:
    """Return the congestion control with its parameters.

    Raises:
        ConfigError: The control or a parameter does not exist, or the switches do not send a signal that it needs.
    """
    name = network.congestion_control
    if name == "none":
        return congestion.NO_CONTROL
    try:
        chosen = congestion.control(name)
    except pdes.RunError:
        known = ", ".join(congestion.names())
        raise ConfigError(f"[network] congestion_control: found {name!r}; expected one of {known}") from None
    try:
        chosen = congestion.control(name, network.congestion)
    except pdes.RunError as error:
        raise ConfigError(f"[network] congestion: {error}") from None
    if network.switch == "output-queued" and not chosen.signals <= WITHOUT_SWITCHES:
        needs = ", ".join(sorted(chosen.signals - WITHOUT_SWITCHES))
        raise ConfigError(
            f"[network] congestion_control: {name} needs {needs} of the switches, which output queues do not give; "
            'expected switch = "shared-buffer"'
        )
    if network.switch == "shared-buffer" and not network.ecn and chosen.signals & {"ecn", "cnp"}:
        raise ConfigError(f"[network] congestion_control: {name} goes by marks; expected ecn = true")
    return chosen


def load_balancing(network: NetworkSection) -> balancing.Balancing:
    """Return the load-balancing rule of the section.

    Raises:
        ConfigError: The rule does not exist, or it reorders packets and the transport does not support that.
    """
    try:
        rule = balancing.balancing(network.load_balancing)
    except pdes.RunError:
        known = ", ".join(balancing.names())
        raise ConfigError(
            f"[network] load_balancing: found {network.load_balancing!r}; expected one of {known}"
        ) from None
    if rule.reorders and network.selective_repeat is False:
        raise ConfigError(
            f"[network] selective_repeat: found false, but {rule.name} lets packets overtake each other; expected true"
        )
    return rule


def settled_parameters(chosen: congestion.Control) -> dict[str, float]:
    """Return the names and settled values of a congestion control's parameters."""
    return dict(zip(congestion.parameters(chosen.name), chosen.values, strict=True))


def controls() -> list[dict[str, Any]]:
    """Return every congestion control: name, title, signals, parameters (name, default, range, doc, aliases)."""
    listed: list[dict[str, Any]] = [
        {"name": "none", "title": "a static window only", "signals": [], "parameters": []},
    ]
    for name in congestion.names():
        if name == "none":
            continue
        module = importlib.import_module(f"{congestion.__name__}.{name}")
        parameters = [
            {
                "name": key,
                "default": parameter.default,
                "range": parameter.range.expected(),
                "doc": parameter.meaning,
                "aliases": dict(parameter.aliases),
            }
            for key, parameter in module.PARAMETERS.items()
        ]
        listed.append({"name": name, "title": module.TITLE, "signals": list(module.SIGNALS), "parameters": parameters})
    return listed


def fitted(graph: Graph, settings: pdes.Settings) -> pdes.Settings:
    """Return the settings after a check that they fit the fabric."""
    check(graph, settings)
    return settings


def check(graph: Graph, settings: pdes.Settings) -> None:
    """Refuse, before anything is built, what the engine cannot build.

    Raises:
        ConfigError: There are no links or too many equal links, packets are too large, rates differ too much, or PFC
            headrooms leave no buffer to share.
    """
    if graph.links == 0:
        raise ConfigError(f"[topology]: {graph.name} has no links; expected one or more")
    widest = int(np.diff(graph.routing.set_ptr).max(initial=0))
    if widest > MAX_SET:
        raise ConfigError(f"[topology]: {graph.name} has {widest} equal links side by side; expected at most {MAX_SET}")
    if settings.fidelity.is_message_level:
        return
    wire_bytes = settings.mtu_bytes + settings.header_bytes
    if wire_bytes > MAX_WIRE_BYTES:
        raise ConfigError(
            f"[network] mtu: packets of {wire_bytes} bytes with their headers; expected at most {MAX_WIRE_BYTES}"
        )
    _check_windows(graph, settings)
    if settings.switch is None and not _may_be_too_fine(graph, settings):
        return
    try:
        fabric = Fabric(graph, settings)
    except pdes.RunError as error:
        raise ConfigError(f"[topology]: {graph.name}: {error}") from None
    if settings.switch is None:
        return
    if "telemetry" in settings.congestion_control.signals and settings.switch.buffer_bytes > MAX_TELEMETRY_BUFFER_BYTES:
        raise ConfigError(
            f"[network] buffer: found {format_bytes(settings.switch.buffer_bytes)}; expected at most "
            f"{format_bytes(MAX_TELEMETRY_BUFFER_BYTES)} with {settings.congestion_control.name}, whose packets "
            "carry it"
        )
    if settings.switch.pfc:
        _check_headrooms(graph, fabric, settings, settings.switch)


def _check_headrooms(graph: Graph, fabric: Fabric, settings: pdes.Settings, switch: SharedBuffer) -> None:
    """Refuse PFC headrooms that leave no buffer to share."""
    headroom = headrooms(graph, fabric, settings) * classes_in_use(settings)
    need = np.bincount(graph.link_dst, headroom, graph.nodes).astype(np.int64)
    need[: graph.npus] = 0
    node = int(need.argmax())
    if need[node] >= switch.buffer_bytes:
        raise ConfigError(
            f"[network] buffer: found {format_bytes(switch.buffer_bytes)}, but the PFC headrooms of "
            f"{graph.node_name(node)} take {format_bytes(int(need[node]))}; expected a larger buffer or a smaller "
            "pfc_headroom"
        )


def _check_windows(graph: Graph, settings: pdes.Settings) -> None:
    """Refuse windows or round-trip times that exceed the ranges of the transport."""
    packets = window_packets(graph, settings)
    if packets > MAX_WINDOW_PACKETS:
        raise ConfigError(f"[network] window: {packets} packets; expected at most {MAX_WINDOW_PACKETS}")
    idle_ps, longest_ps = round_trip_ps(graph, settings)[0], ECHO_MASK // 2
    if "rtt" in settings.congestion_control.signals and idle_ps > longest_ps:
        raise ConfigError(
            f"[network] congestion_control: {settings.congestion_control.name} goes by round-trip times, and an idle "
            f"one of {graph.name} may take {format_time(idle_ps)}; "
            f"expected at most {format_time(longest_ps)}"
        )
    if settings.selective_repeat and packets > SELECTIVE_PACKETS:
        raise ConfigError(
            f"[network] window: {packets} packets; expected at most {SELECTIVE_PACKETS} with selective repeat"
        )


def _may_be_too_fine(graph: Graph, settings: pdes.Settings) -> bool:
    """Return whether packets might take less than a picosecond, or too many may reach a node at a time."""
    degree = np.bincount(graph.link_dst, minlength=graph.nodes)
    smallest_bytes = min(settings.header_bytes, settings.ack_bytes, FLIT_BYTES)
    smallest_ps = smallest_bytes * PS_PER_BYTE_AT_1_BPS / float(graph.link_rate_bps.max())
    return bool(smallest_ps < 1 or degree.max(initial=0) > MAX_BATCH // 4)

"""Settings of the engine for [network]: models of the network, switches, congestion control, and limits of a fabric."""

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from nadi import pdes
from nadi.configuration import MAX_TELEMETRY_BUFFER_BYTES, MAX_WINDOW_PACKETS
from nadi.configuration.sections import NetworkSection, SystemSection, TierSection
from nadi.errors import ConfigError
from nadi.inputs import plug_ins
from nadi.inputs.units import PS_PER_BYTE_AT_1_BPS, format_bytes, format_rate, format_time
from nadi.pdes import SharedBuffer, balancing, congestion, disciplines, wire
from nadi.topologies import Graph, Routing, deadlock

# maximum numbers of intervals of time for which a port records its queue, and for which all ports of a fabric do: with
# more than a million links, 64 intervals would take a gigabyte for each of queues and marks
QUEUE_SAMPLES, ALL_QUEUE_SAMPLES = 64, 1 << 26
SEARCHED_ROUTES = 16  # maximum number of routes that faults make which are searched for circles
LOGGED_PAUSES = 1 << 16  # maximum number of pauses and resumes that a run records
# overrides for models without packets, so that no check of switches, windows and protocols applies
_WITHOUT_PACKETS = {
    "switch": None,
    "credits": None,
    "congestion_control": congestion.NO_CONTROL,
    "entropy": wire.entropy.FIXED,
    "routing": wire.detours.MINIMAL,
    "selective_repeat": False,
    "rendezvous_bytes": 0,
    "collectives_in_flight": 0,
}
WITHOUT_SWITCHES = {"rtt"}  # signals that reach a sender without support of the switches


def network_settings(
    network: NetworkSection,
    system: SystemSection | None = None,
    *,
    seed: int = 1,
    record_nodes: bool = True,
    record_flows: bool = True,
) -> pdes.Settings:
    """Return the engine's settings for [network] and [system] and these options; refuse contradictory values.

    Args:
        network: Section [network] of the run file.
        system: Section [system]; None = its defaults.
        seed: Seed of the run's random choices.
        record_nodes: Whether results have a row per trace node.
        record_flows: Whether results have a row per message.
    """
    model, name = network.model, network.congestion_control
    tiers = [
        wire.TierSwitch(word, tier.cut_through, _own_balancing(word, network), **tier.engine_settings(SharedBuffer))
        for word, tier in (network.tiers or {}).items()
    ]
    keywords = (system or SystemSection()).engine_settings(pdes.Settings) | network.engine_settings(pdes.Settings)
    keywords |= {
        "fidelity": pdes.Fidelity(model, own=network.own_keys, **network.engine_settings(pdes.Fidelity, model.keys)),
        "switch": shared_buffer(network.engine_settings(pdes.SharedBuffer))
        if network.switch == "shared-buffer"
        else None,
        "credits": wire.CreditSwitch(**network.engine_settings(wire.CreditSwitch))
        if network.switch == "credits"
        else None,
        "congestion_control": control(name, network.congestion, network.switch, ecn=network.ecn),
        "load_balancing": load_balancing(network.load_balancing, _repeats_selectively(network)),
        "entropy": entropy_rule(network.entropy, _repeats_selectively(network)),
        "routing": routing(network.routing, _repeats_selectively(network)),
        "tiers": tuple(tiers),
        "queue_samples": QUEUE_SAMPLES,
        "logged_pauses": LOGGED_PAUSES,
    }
    with _naming("denied_paths"):
        is_of_spine = any(spine >= 0 for _, spine, _ in wire.entropy.denied_of(network.denied_paths or ()))
    if is_of_spine and "entropy" not in network.balancings:
        raise ConfigError('[network] denied_paths: names spines; expected load_balancing = "entropy"')
    if network.nic_ports == "all" and network.switch == "credits":
        raise ConfigError('[network] nic_ports: found "all" with switch = "credits"; expected "one"')
    if not model.has_packets:
        keywords |= _WITHOUT_PACKETS
    if not model.has_headers:  # without packets there are no NVLink flits, so the whole rate is payload
        keywords["nvlink_framing"] = False
    settings = pdes.Settings(seed=seed, record_nodes=record_nodes, record_flows=record_flows, **keywords)
    if settings.receiver_credits and not settings.selective_repeat:
        raise ConfigError(
            "[network] receiver_credits: found true, but a sender with go-back-N does not know what it must send "
            'again; expected delivery = "rud" or selective_repeat = true'
        )
    return settings


def _repeats_selectively(network: NetworkSection) -> str | bool:
    """Return selective_repeat, which a delivery mode decides; refuse one that contradicts it."""
    given = network.selective_repeat
    if network.delivery == "auto":
        return given
    is_selective = network.delivery == "rud"
    if given not in ("auto", is_selective):
        raise ConfigError(
            f"[network] selective_repeat: found {str(given).lower()} with delivery = {network.delivery!r}; "
            f"expected {str(is_selective).lower()}"
        )
    return is_selective


def fidelities() -> list[dict[str, Any]]:
    """Return what each model of the network declares; `refused_faults` are keys of [[faults]], null for all."""
    return [
        {
            "fidelity": model.name,
            "message": model.title,
            "use": model.use,
            **{name: getattr(model, name) for name in ("several_workers", "has_packets", "has_links")},
            "refused_faults": None if model.refused_faults is None else list(model.refused_faults),
            "keys": sorted(model.keys),
        }
        for model in pdes.fidelity.networks().values()
    ]


def documentation() -> str:
    """Return a Markdown table of all models of the network, a model per column."""
    known = fidelities()
    rows = [f"| {fact.replace('_', ' ')} | {' | '.join(shown(model[fact]) for model in known)} |" for fact in known[0]]
    return "\n".join([rows[0], "| --- " * (1 + len(known)) + "|", *rows[1:]]) + "\n"


def shown(value: Any) -> str:  # noqa: ANN401 - of any type
    """Return a value of `fidelities` as text."""
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return {True: "yes", False: "no", None: "all"}.get(value, str(value))


def shared_buffer(settings: dict[str, Any]) -> SharedBuffer:
    """Return the shared buffer of switches by its settings, discipline by name; refuse one that does not exist."""
    if "discipline" in settings:
        with _naming("discipline"):
            settings = settings | {"discipline": disciplines.discipline(settings["discipline"])}
    return SharedBuffer(**settings)


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Raise the engine's errors as ConfigErrors that name a key of [network]."""
    try:
        yield
    except pdes.RunError as error:
        raise ConfigError(f"[network] {key}: {error}") from None


def control(name: str, parameters: Mapping[str, float], switch: str | None, *, ecn: bool | None) -> congestion.Control:
    """Return the congestion control; refuse an unknown one or parameter, or one whose signals switches do not send.

    Args:
        name: The control; "none" = a static window only.
        parameters: Values of the control's parameters, by name.
        switch: The kind of the switches; None = the model of the network has none.
        ecn: Whether switches mark packets.
    """
    if name == "none":
        return congestion.NO_CONTROL
    with _naming("congestion_control"):
        congestion.module_of(name)
    with _naming("congestion"):
        chosen = congestion.control(name, parameters)
    # neither an output queue nor a switch with credits marks packets or writes telemetry
    if switch in {"output-queued", "credits"} and not chosen.signals <= WITHOUT_SWITCHES:
        needs = ", ".join(sorted(chosen.signals - WITHOUT_SWITCHES))
        lacking = "output queues" if switch == "output-queued" else "switches with credits"
        raise ConfigError(
            f"[network] congestion_control: {name} needs {needs} of the switches, which {lacking} do not give; "
            'expected switch = "shared-buffer"'
        )
    if switch == "shared-buffer" and not ecn and chosen.signals & {"ecn", "cnp"}:
        raise ConfigError(f"[network] congestion_control: {name} goes by marks; expected ecn = true")
    return chosen


def load_balancing(name: str, selective_repeat: str | bool) -> balancing.Balancing:
    """Return the load-balancing rule; refuse an unknown one, or one that reorders without selective repeat.

    Args:
        name: Name of the rule.
        selective_repeat: Value of [network] selective_repeat: True, False or "auto".
    """
    with _naming("load_balancing"):
        rule = balancing.balancing(name)
    _check_order(f"load_balancing = {rule.name!r}", selective_repeat, reorders=rule.reorders)
    return rule


def _own_balancing(word: str, network: NetworkSection) -> balancing.Balancing | None:
    """Return the load-balancing rule of a tier, by the word of its switches; None = that of all switches."""
    name = (network.tiers or {})[word].load_balancing
    if name is None or not network.model.has_packets:
        return None
    if plug_ins.is_file(balancing.KIND, name):
        raise ConfigError(
            f"[network] tiers.{word}: found load_balancing = {name!r}; expected a name, as files are for all switches"
        )
    if len(network.balancings) > balancing.MAX_RULES:
        found = f"{len(network.balancings)} rules of load_balancing, {', '.join(network.balancings)}"
        raise ConfigError(f"[network] tiers: found {found}; expected at most {balancing.MAX_RULES}")
    try:
        return load_balancing(name, _repeats_selectively(network))
    except ConfigError as error:
        raise ConfigError(str(error).replace("[network] ", f"[network] tiers.{word}: ", 1)) from None


def entropy_rule(name: str, selective_repeat: str | bool) -> wire.entropy.EntropyRule:
    """Return the entropy rule; refuse an unknown one, or several paths without selective repeat.

    Args:
        name: Name of the rule.
        selective_repeat: Value of [network] selective_repeat: True, False or "auto".
    """
    with _naming("entropy"):
        rule = wire.entropy.entropy_rule(name)
    _check_order(f"entropy = {name!r}", selective_repeat, reorders=rule.act is not None)
    return rule


def routing(name: str, selective_repeat: str | bool) -> wire.detours.Detours:
    """Return the rule of detours; refuse an unknown one, or one other than minimal without selective repeat.

    Args:
        name: Name of the rule.
        selective_repeat: Value of [network] selective_repeat: True, False or "auto".
    """
    with _naming("routing"):
        rule = wire.detours.detours(name)
    _check_order(f"routing = {rule.name!r}", selective_repeat, reorders=rule.reorders)
    return rule


def _check_order(choice: str, selective_repeat: str | bool, *, reorders: bool) -> None:
    """Refuse a choice (its key and value) by which packets overtake each other, without selective repeat."""
    if reorders and selective_repeat is False:
        raise ConfigError(
            f"[network] selective_repeat: found false, but with {choice} packets overtake each other; expected true"
        )


def circular_waits(graph: Graph, settings: pdes.Settings) -> list[str]:
    """Return a sentence that names links whose packets may wait for each other, if nothing is dropped; [] without them.

    Packets rise through the lanes of their messages (`Routing.rising_links`), with pauses through `pfc_rising_classes`.
    Raises ConfigError where more lanes, or more than the given classes, would break the circle.

    Args:
        graph: The fabric.
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    rules, rule = settings.credits, settings.routing
    pauses = settings.switch is not None and wire.at_tiers(graph, settings, "pfc")[graph.npus :].any()
    if rules is None and not pauses:
        return []

    def circle(lanes: int, routing: Routing = graph.routing, down: Collection[int] = ()) -> list[int] | None:
        routed = replace(graph, routing=routing, source_routes=graph.source_routes if rule.by_source else None)
        return deadlock.dependency_cycle(
            routed,
            detours=rule.reorders,
            changes=rule.changes,
            raises_detours=rule.raises_detours,
            classes=lanes,
            down=down,
        )

    # those of collectives come before those of point-to-point messages
    first = settings.p2p_class
    if rules is None:
        assert settings.switch is not None, "switches pause"  # noqa: S101 - for mypy
        key, lanes, most = "pfc_rising_classes", settings.switch.pfc_rising_classes, _most_rising(settings)
    else:
        key, lanes = "virtual_lanes", min(first or rules.virtual_lanes, rules.virtual_lanes - first)
        most = wire.MAX_DATA_CLASSES // (2 if first else 1)
    reason = "pfc = true" if rules is None else 'switch = "credits"'
    cycle = circle(lanes)
    if cycle is None:
        # routes around what faults take down, the first ones where there are many
        for down, routing in itertools.islice(settings.faults.routings.items(), SEARCHED_ROUTES):
            cycle = circle(lanes, routing, down) if down else None
            if cycle is not None:
                nodes, cables = deadlock.circle_text(graph, cycle), {link >> 1 for link in down}
                when = f"while {len(cables)} {'cable is' if len(cables) == 1 else 'cables are'} down"
                return [f"{reason}: the run may stop {when}, as packets may wait in a circle: {nodes}"]
        return []
    nodes = deadlock.circle_text(graph, cycle)
    # switches with a single class are usual, and their circles a fact of such networks
    is_chosen = rules is not None or lanes > 1
    enough = next((more for more in range(lanes + 1, most + 1) if circle(more) is None), 0) if is_chosen else 0
    if enough:
        each = ", as many for collectives and for point-to-point messages" if rules is not None and first else ""
        raise ConfigError(
            f"[network] {key}: with {lanes}, packets may wait in a circle: {nodes}; expected {enough} or more{each}"
        )
    return [f"{reason}: the run may stop, as packets may wait in a circle: {nodes}"]


def _most_rising(settings: pdes.Settings) -> int:
    """Return the number of classes through which packets can rise below the next class of messages; refuse more."""
    first = [*settings.message_classes, wire.MAX_DATA_CLASSES]
    most = int(np.diff(first).min())
    assert settings.switch is not None, "switches pause"  # noqa: S101 - for mypy
    found = settings.switch.pfc_rising_classes
    if found > most:
        named = ", ".join(map(str, settings.message_classes))
        raise ConfigError(
            f"[network] pfc_rising_classes: found {found}, but messages have the data classes {named} of 0 to "
            f"{wire.MAX_DATA_CLASSES - 1}; expected at most {most}"
        )
    return most


def settled_parameters(chosen: congestion.Control) -> dict[str, float]:
    """Return the names and settled values of a congestion control's parameters.

    Args:
        chosen: Congestion control of the run.
    """
    return dict(zip(congestion.parameters(chosen.name), chosen.values, strict=True))


def controls() -> list[dict[str, Any]]:
    """Return every congestion control: name, title, signals, parameters (name, default, range, doc, aliases)."""
    listed: list[dict[str, Any]] = [{"name": "none", "title": "a static window only", "signals": [], "parameters": []}]
    for name in congestion.names():
        if name != "none":
            module = congestion.module_of(name)
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
            signals = list(module.SIGNALS)
            listed.append({"name": name, "title": module.TITLE, "signals": signals, "parameters": parameters})
    return listed


def _check_routing(graph: Graph, settings: pdes.Settings) -> None:
    """Refuse detours where packets cannot take them."""
    if not settings.routing.route or not settings.fidelity.model.has_packets:
        return
    if graph.routing.dimensions:
        raise ConfigError(
            f"[network] routing: {settings.routing.name} on {graph.name}, which is routed by dimensions; "
            "expected minimal, or a fabric of switches"
        )
    if settings.routing.by_source and graph.source_routes is None:
        raise ConfigError(
            f"[network] routing: {settings.routing.name} on {graph.name}, which has no source routes; expected "
            "source_routes = FILE"
        )


def with_tiers(graph: Graph, tiers: Mapping[str, TierSection]) -> Graph:
    """Return the fabric with the forwarding latencies of its tiers; refuse a tier that it does not have.

    Args:
        graph: The fabric.
        tiers: [network.tiers], by the word of the switches' names.
    """
    if not tiers:
        return graph
    words = np.array([graph.node_word(node) for node in range(graph.npus, graph.nodes)])
    known = set(words) - {"nvswitch"}  # NVLink's switches have neither buffers nor latencies of their own
    latency_ps = graph.node_latency_ps.copy()
    for word, tier in tiers.items():
        if word not in known:
            found = ", ".join(sorted(known)) or "no tiers, as it has no switch outside of NVLink domains"
            raise ConfigError(f"[network] tiers: found {word!r}; expected tiers of {graph.name}: {found}")
        if tier.latency is not None:
            latency_ps[graph.npus :][words == word] = tier.latency
    return replace(graph, node_latency_ps=latency_ps)


def fitted(graph: Graph, settings: pdes.Settings) -> pdes.Settings:
    """Return the settings as they fit a fabric; refuse, with a ConfigError, what the engine cannot build on it.

    Args:
        graph: The fabric (`Graph`).
        settings: The engine's settings of the run (`pdes.Settings`).
    """
    _check_links(graph, settings)
    while settings.queue_samples > 1 and settings.queue_samples * graph.links > ALL_QUEUE_SAMPLES:
        settings = replace(settings, queue_samples=settings.queue_samples // 2)
    if settings.fidelity.hooks.act:
        return settings
    wire_bytes = settings.mtu_bytes + settings.header_bytes
    if wire_bytes > wire.MAX_WIRE_BYTES:
        raise ConfigError(
            f"[network] mtu: packets of {wire_bytes} bytes with their headers; expected at most {wire.MAX_WIRE_BYTES}"
        )
    _check_windows(graph, settings)
    switch = settings.switch
    # packets might take less than a picosecond, or too many may reach a node at a time
    smallest_bytes = min(settings.smallest_bytes, wire.FLIT_BYTES)
    smallest_ps = smallest_bytes * PS_PER_BYTE_AT_1_BPS / float(graph.link_rate_bps.max())
    degree = np.bincount(graph.link_dst, minlength=graph.nodes).max(initial=0)
    if not settings.has_port_queues and smallest_ps >= 1 and degree <= wire.MAX_BATCH // 4:
        return settings
    try:
        fabric = wire.Fabric(graph, settings)
    except pdes.RunError as error:
        raise ConfigError(f"[topology]: {graph.name}: {error}") from None
    if settings.credits is not None:
        with _naming("lane_buffer"):
            wire.lane_units(graph, fabric, settings)
    if switch is not None:
        _check_buffer(graph, fabric, settings)
    return settings


def _check_links(graph: Graph, settings: pdes.Settings) -> None:
    """Refuse a fabric without links, of links too wide or too fast, or whose routing knows no detours."""
    if graph.links == 0:
        raise ConfigError(f"[topology]: {graph.name} has no links; expected one or more")
    _check_routing(graph, settings)
    widest = int(np.diff(graph.routing.set_ptr).max(initial=0))
    if widest > wire.MAX_SET:
        raise ConfigError(
            f"[topology]: {graph.name} has {widest} equal links side by side; expected at most {wire.MAX_SET}"
        )
    most_bps = settings.max_link_rate_bps
    if most_bps and graph.link_rate_bps.max() > most_bps:
        link = int(graph.link_rate_bps.argmax())
        raise ConfigError(
            f"[topology]: {graph.name} has a link of {format_rate(int(graph.link_rate_bps[link]))}, "
            f"{graph.node_name(int(graph.link_src[link]))} - {graph.node_name(int(graph.link_dst[link]))}; "
            f"expected at most {format_rate(most_bps)} with flows"
        )


def _check_buffer(graph: Graph, fabric: wire.Fabric, settings: pdes.Settings) -> None:
    """Refuse a shared buffer that exceeds what telemetry can carry, or of which PFC headrooms leave nothing."""
    buffer_bytes = wire.at_tiers(graph, settings, "buffer_bytes").astype(np.int64)
    largest_bytes = int(buffer_bytes[graph.npus :].max(initial=0))
    if "telemetry" in settings.congestion_control.signals and largest_bytes > MAX_TELEMETRY_BUFFER_BYTES:
        raise ConfigError(
            f"[network] buffer: found {format_bytes(largest_bytes)}; expected at most "
            f"{format_bytes(MAX_TELEMETRY_BUFFER_BYTES)} with {settings.congestion_control.name}, whose packets "
            "carry it"
        )
    if not wire.at_tiers(graph, settings, "pfc")[graph.npus :].any():
        return
    headroom = wire.headrooms(graph, fabric, settings) * len(settings.lossless_classes)
    need = np.bincount(graph.link_dst, headroom, graph.nodes).astype(np.int64)
    # NPUs have no shared buffers
    need[: graph.npus] = 0
    node = int((need - buffer_bytes).argmax())
    if need[node] >= buffer_bytes[node]:
        raise ConfigError(
            f"[network] buffer: found {format_bytes(int(buffer_bytes[node]))}, but the PFC headrooms of "
            f"{graph.node_name(node)} take {format_bytes(int(need[node]))}; expected a larger "
            "buffer or a smaller pfc_headroom"
        )


def _check_windows(graph: Graph, settings: pdes.Settings) -> None:
    """Refuse windows or round-trip times that exceed the ranges of the transport."""
    packets = wire.window_packets(graph, settings)
    if packets > MAX_WINDOW_PACKETS:
        raise ConfigError(f"[network] window: {packets} packets; expected at most {MAX_WINDOW_PACKETS}")
    # an echoed time wraps, so a round trip must stay below half of its range
    idle_ps, longest_ps = wire.round_trip_ps(graph, settings)[0], wire.ECHO_MASK // 2
    if "rtt" in settings.congestion_control.signals and idle_ps > longest_ps:
        raise ConfigError(
            f"[network] congestion_control: {settings.congestion_control.name} goes by round-trip times, and an idle "
            f"one of {graph.name} may take {format_time(idle_ps)}; "
            f"expected at most {format_time(longest_ps)}"
        )
    if settings.selective_repeat and packets > wire.SELECTIVE_PACKETS:
        raise ConfigError(
            f"[network] window: {packets} packets; expected at most {wire.SELECTIVE_PACKETS} with selective repeat"
        )

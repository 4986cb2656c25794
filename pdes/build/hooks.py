"""Hooks: functions that kernels call by address, for optional parts of the engine that not every run uses."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdes.build.settings import Settings
from pdes.core.inputs import Graph
from pdes.messages import fidelity
from pdes.messages.whole import post_whole, post_whole_later
from pdes.network import balancing, disciplines
from pdes.network.far_routing import cell_of_several, port_of_several
from pdes.network.faults import make_changes
from pdes.network.shared_switch import shared_switches
from pdes.network.telemetry import carry
from pdes.nic import congestion
from pdes.nic.allowed import first_allowed, pace
from pdes.nic.driven import DRIVEN, begin_message, drive
from pdes.nic.rendezvous import ask
from pdes.nic.selective import sender
from pdes.nic.selective_receiver import receive
from pdes.nic.transport import notify
from pdes.npu.collective import expect
from pdes.npu.delivery import message_by_kind
from pdes.npu.endpoints import do_later, is_acknowledged, is_in, post_at_ends, post_later
from pdes.npu.in_flight import may_start, running

Hook = Callable[..., Any]


def _choices(settings: Settings, *, one_way: bool, one_port: bool) -> list[tuple[str, Any, Any]]:
    """Return triples: word of `Hooks`, whether the run calls it, and the hook.

    one_way: routing tables give each NPU one home; one_port: each NPU has one port.
    """
    control, ends = settings.congestion_control, settings.fidelity
    discipline = settings.switch.discipline if settings.switch else disciplines.STRICT
    is_driven, by_message = control == DRIVEN, ends.act is not None
    acts_later = ends.endpoint_delay_ps or ends.reduction_psb or ends.acknowledged
    has_control = settings.rendezvous_bytes or settings.collectives_in_flight
    return [
        ("congestion_control", control.update, control.update),
        ("pace", control.update and not is_driven, pace),
        ("pace", is_driven, drive),
        ("begin_message", is_driven, begin_message),
        ("notify", "cnp" in control.signals, notify),
        ("telemetry", "telemetry" in control.signals, carry),
        ("balancing", settings.load_balancing.pick, settings.load_balancing.pick),
        ("shared_switches", settings.switch, shared_switches),
        ("discipline", discipline.pick, discipline.pick),
        ("selective_sender", settings.selective_repeat, sender),
        ("selective_receiver", settings.selective_repeat, receive),
        ("route", not one_way, cell_of_several),
        ("choose_port", not one_port, port_of_several),
        ("make_changes", settings.faults, make_changes),
        ("post", by_message, post_whole),
        ("post", not by_message and (ends.send_latency_ps or ends.acknowledged), post_at_ends),
        ("act", by_message, ends.act),
        ("ask", settings.rendezvous_bytes, ask),
        ("expect", has_control, expect),
        ("message_by_kind", has_control, message_by_kind),
        ("may_start", settings.collectives_in_flight, may_start),
        ("running", settings.collectives_in_flight or settings.compute_slowdown != 1.0, running),
        ("is_in", not by_message and acts_later, is_in),
        ("do_later", not by_message, do_later),
        ("post_later", not by_message, post_later),
        ("post_later", by_message, post_whole_later),
        ("is_acknowledged", ends.acknowledged, is_acknowledged),
        ("first_allowed", settings.switch or control.update or settings.selective_repeat, first_allowed),
    ]


def all_hooks() -> list[Hook]:
    """Return every hook that any run may use."""
    ours = [hook for _, _, hook in _choices(Settings(), one_way=True, one_port=True)]
    controls = [control.update for control in (DRIVEN, *map(congestion.control, congestion.names()))]
    rules = [balancing.balancing(name).pick for name in balancing.names()]
    orders = [disciplines.discipline(name).pick for name in disciplines.names()]
    models = [fidelity.fidelity(name).act for name in fidelity.names()]
    return [hook for hook in dict.fromkeys(ours + controls + rules + orders + models) if hook]


def hooks_of(graph: Graph, settings: Settings) -> dict[str, Hook]:
    """Return the hooks of a run: name (of `Hooks`) -> hook."""
    one_way = hasattr(graph.routing, "home") and graph.routing.home.shape[1] == 1
    ports = np.bincount(graph.link_src[graph.link_src < graph.npus]).max(initial=0)
    choices = _choices(settings, one_way=one_way, one_port=ports <= 1)
    return {name: hook for name, is_called, hook in choices if is_called}

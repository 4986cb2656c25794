"""What kernels call by address: the parts of the engine of which a run uses some."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdes.build.settings import Settings
from pdes.core.inputs import Graph
from pdes.messages import fidelity
from pdes.messages.whole import post_whole
from pdes.network import balancing
from pdes.network.far_routing import cell_of_several, port_of_several
from pdes.network.faults import make_changes
from pdes.network.shared_switch import shared_switches
from pdes.network.telemetry import carry
from pdes.nic import congestion
from pdes.nic.allowed import first_allowed, pace
from pdes.nic.driven import DRIVEN, begin, begin_message, drive, pace_at_share
from pdes.nic.notification import notify
from pdes.nic.rendezvous import ask
from pdes.nic.selective import sender
from pdes.nic.selective_receiver import receive
from pdes.npu.collective import expect
from pdes.npu.delivery import message_by_kind
from pdes.npu.endpoints import do_later, is_acknowledged, is_in, post_at_ends
from pdes.npu.in_flight import may_start, running


def all_hooks() -> list[Callable[..., Any]]:
    """Every hook that some run may use."""
    ours: list[Callable[..., Any]] = [
        ask,
        begin,
        begin_message,
        carry,
        cell_of_several,
        do_later,
        drive,
        expect,
        first_allowed,
        is_acknowledged,
        is_in,
        make_changes,
        may_start,
        message_by_kind,
        notify,
        pace,
        pace_at_share,
        port_of_several,
        post_at_ends,
        post_whole,
        receive,
        running,
        sender,
        shared_switches,
    ]
    controls = [congestion.control(name).update for name in congestion.names()]
    rules = [balancing.balancing(name).pick for name in balancing.names()]
    models = [fidelity.fidelity(name).act for name in fidelity.names()]
    return ours + [hook for hook in controls + rules + models if hook]


def hooks_of(graph: Graph, settings: Settings) -> dict[str, Callable[..., Any]]:
    """The hooks of a run: name (of `Hooks`) -> hook."""
    control, alone = settings.congestion_control, settings.congestion_control == DRIVEN
    ends, whole = settings.fidelity, settings.fidelity.act is not None
    acts_later = ends.endpoint_delay_ps or ends.reduction_psb or ends.acknowledged
    by_row = hasattr(graph.routing, "home") and graph.routing.home.shape[1] == 1
    ports = np.bincount(graph.link_src[graph.link_src < graph.npus]).max(initial=0)
    wanted = {
        "congestion_control": control.update,
        "pace": control.update and (drive if alone else pace_at_share if control.shares else pace),
        "begin_message": alone and begin_message,
        "notify": "cnp" in control.signals and notify,
        "telemetry": "telemetry" in control.signals and carry,
        "balancing": settings.load_balancing.pick,
        "shared_switches": settings.switch and shared_switches,
        "selective_sender": settings.selective_repeat and sender,
        "selective_receiver": settings.selective_repeat and receive,
        "route": not by_row and cell_of_several,
        "choose_port": ports > 1 and port_of_several,
        "make_changes": settings.faults and make_changes,
        "post": post_whole if whole else (ends.send_latency_ps or ends.acknowledged) and post_at_ends,
        "act": settings.fidelity.act,
        "ask": settings.rendezvous_bytes and ask,
        "expect": (settings.rendezvous_bytes or settings.collectives_in_flight) and expect,
        "message_by_kind": (settings.rendezvous_bytes or settings.collectives_in_flight) and message_by_kind,
        "may_start": settings.collectives_in_flight and may_start,
        "running": (settings.collectives_in_flight or settings.compute_slowdown != 1.0) and running,
        "is_in": not whole and acts_later and is_in,
        "do_later": ends.has_endpoints and do_later,
        "is_acknowledged": ends.acknowledged and is_acknowledged,
        "first_allowed": (settings.switch or control.update or settings.selective_repeat) and first_allowed,
    }
    return {name: hook for name, hook in wanted.items() if hook}

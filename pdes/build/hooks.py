"""What kernels call by address: the parts of the engine of which a run uses some."""

import numpy as np

from pdes.core import state as s
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
from pdes.npu.endpoints import do_later, is_acknowledged, is_in, post_at_ends
from pdes.npu.in_flight import may_start
from pdes.npu.npu_window import message_by_kind, running


def all_hooks() -> list:
    """Every hook that some run may use."""
    ours = [
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


def hooks_of(graph, settings) -> dict:
    """The hooks of a run: constant (CONST_*) that holds the address -> hook."""
    control, alone = settings.control, settings.control == DRIVEN
    ends, whole = settings.fidelity, settings.fidelity.act is not None
    acts_later = ends.endpoint_delay_ps or ends.reduction_psb or ends.acknowledged
    by_row = hasattr(graph.routing, "home") and graph.routing.home.shape[1] == 1
    ports = np.bincount(graph.link_src[graph.link_src < graph.npus]).max(initial=0)
    wanted = {
        s.CONST_CC_HOOK: control.update,
        s.CONST_PACE: control.update and (drive if alone else pace_at_share if control.shares else pace),
        s.CONST_DRIVEN: alone and begin_message,
        s.CONST_CNP: "cnp" in control.signals and notify,
        s.CONST_TELEMETRY: "telemetry" in control.signals and carry,
        s.CONST_BALANCE: settings.balancing.pick,
        s.CONST_SWITCH_HOOK: settings.switch and shared_switches,
        s.CONST_SELECTIVE: settings.selective_repeat and sender,
        s.CONST_SELECTIVE_RX: settings.selective_repeat and receive,
        s.CONST_ROUTE_HOOK: not by_row and cell_of_several,
        s.CONST_PORT_HOOK: ports > 1 and port_of_several,
        s.CONST_FAULT_HOOK: settings.faults and make_changes,
        s.CONST_POST: post_whole if whole else (ends.send_latency_ps or ends.acknowledged) and post_at_ends,
        s.CONST_ACT: settings.fidelity.act,
        s.CONST_ASK: settings.rendezvous_bytes and ask,
        s.CONST_EXPECT: (settings.rendezvous_bytes or settings.collectives_in_flight) and expect,
        s.CONST_BY_KIND: (settings.rendezvous_bytes or settings.collectives_in_flight) and message_by_kind,
        s.CONST_MAY_START: settings.collectives_in_flight and may_start,
        s.CONST_RUNNING: (settings.collectives_in_flight or settings.compute_slowdown != 1.0) and running,
        s.CONST_ARRIVED: not whole and acts_later and is_in,
        s.CONST_LATER: ends.has_endpoints and do_later,
        s.CONST_TOLD: ends.acknowledged and is_acknowledged,
        s.CONST_NIC: (settings.switch or control.update or settings.selective_repeat) and first_allowed,
    }
    return {constant: hook for constant, hook in wanted.items() if hook}

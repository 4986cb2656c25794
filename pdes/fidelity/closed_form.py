"""Closed forms: no message crosses the network; nadi/simulation/closed_forms computes the times and runs programs."""

from nadi.pdes.fidelity import NO_PAUSES, PATH_KEYS, MessageHooks, NetworkModel

NO_LOSSES = "closed forms model no losses; expected slowdown, rate or added_latency"
ALWAYS_SLOW = 'at closed forms links are slow for the whole run; expected at = "0s" and no until'

NETWORK = NetworkModel(
    name="closed-form",
    title="takes what it would take alone, as packets, and a collective is one event for each member; "
    "members of a collective wait for the last of them",
    use="ranking plans; steps of thousands of NPUs",
    keys=PATH_KEYS | {"acknowledged"},
    hooks=(MessageHooks(contends=False),),
    has_links=False,
    refused_faults={
        "state": NO_LOSSES,
        "error_rate": NO_LOSSES,
        "pause_storm": NO_PAUSES,
        "at": ALWAYS_SLOW,
        "until": ALWAYS_SLOW,
    },
)

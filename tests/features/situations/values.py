"""Situations: named machines and clusters, the work on them, what fails there, and the ways in which Nadi runs it.

A factor is one of the names in capitals. Each situation has a value of every factor; the first value is the plain one.
"""

import itertools

from nadi.topologies.clusters import clusters
from nadi.topologies.machines import machines

FABRICS = {
    "dragonfly": {8: "p=1,a=4,h=1,groups=2", 16: "p=1,a=4,h=1,groups=4", 64: "p=4,a=4,h=1,groups=4"},
    "dragonfly-plus": {8: "p=1,leaves=2,h=2,groups=4", 16: "p=2,leaves=2,groups=4", 64: "p=4,leaves=4,groups=4"},
    "slim-fly": {64: "q=4,p=2"},
    "hyperx": {8: "sizes=4x2,p=1", 16: "sizes=4x4,p=1", 64: "sizes=8x8,p=1"},
    "multi-plane": {npus: f"npus={npus},planes=4,nics_per_leaf=4" for npus in (8, 16, 64)},
    "rail-only": {npus: f"npus={npus}" for npus in (8, 16, 64)},
    "zcube": {npus: f"npus={npus},npus_per_switch=4" for npus in (8, 16, 64)},
    "twisted-torus": {8: "sizes=4x2", 16: "sizes=4x2x2"},
}
"""Parameters of fabrics without names of machines, by their number of NPUs."""
FABRIC_NETWORK = {
    "dragonfly": {"routing": "ugal-l", "switch": "shared-buffer"},
    "dragonfly-plus": {"routing": "par"},
    "hyperx": {"switch": "credits", "virtual_lanes": 2},
    "multi-plane": {
        "nic_ports": "all",
        "entropy": "mrc",
        "paths": 16,
        "delivery": "rud",
        "congestion_control": "nscc",
        "switch": "shared-buffer",
        "pfc": False,
        "trimming": True,
    },
    "zcube": {"load_balancing": "adaptive"},
}
"""Keys of [network] with these fabrics."""
PLACE, GPUS, UNITS, WORK = "place", "gpus", "units", "work"
FIDELITY, FAULT, LINK = "fidelity", "fault", "link"
COMPANY, REUSE, RESTART, WORKERS = "company", "reuse", "restart", "workers"
ENDS_ON_THE_WAY = "exact, and in vain on the way"

FACTORS = {
    PLACE: ["cluster dgx-h100-superpod"]
    + [f"cluster {name}" for name in clusters() if name != "dgx-h100-superpod"]
    + [f"machine {name}" for name in machines()]
    + [f"fabric {name}" for name in FABRICS],
    GPUS: [16, 8, 64],
    UNITS: ["as published", "of one server"],  # of the latter, several servers need spines
    WORK: ["dense", "experts", "fsdp", "serving", "collectives"],
    FIDELITY: [
        "packets",
        "flows",
        "coupled flows",
        "mixed",
        "NVLink closed forms",
        "closed forms",
        "whole messages",
        "whole messages, unaware",
    ],
    FAULT: [
        "none",
        "link down",
        "link back",
        "cable down",
        "switch down",
        "switch back",
        "slow GPU",
        "slow link",
        "slow link for the whole run",
        "late link",
        "lossy link",
    ],
    LINK: ["NIC", "NVLink", "uplink"],
    COMPANY: ["alone", "the same work", "serving", "traffic"],
    REUSE: ["exact", "off", ENDS_ON_THE_WAY],
    RESTART: [False, True],
    WORKERS: ["alone", "threads", "processes"],
}
_FAULTS = FACTORS[FAULT][1:]
LIMITS = {
    "dimensions are routed one way": {
        PLACE: ["cluster tpu-v4", "cluster mi300x-8"],
        FAULT: ["link down", "link back", "cable down", "switch down", "switch back"],
    },
    "a torus of so many": {PLACE: ["cluster tpu-v4"], GPUS: [16]},
    "a slim fly of so many": {PLACE: ["fabric slim-fly"], GPUS: [8, 16]},
    "a twisted torus of so many": {PLACE: ["fabric twisted-torus"], GPUS: [64]},
    "whole messages have no faults": {FIDELITY: ["whole messages", "whole messages, unaware"], FAULT: _FAULTS},
    "closed forms: slow GPUs, and links that are slow for the whole run": {
        FIDELITY: ["closed forms"],
        FAULT: [name for name in _FAULTS if name not in {"slow GPU", "slow link for the whole run"}],
    },
    "flows lose nothing": {FIDELITY: ["flows", "coupled flows"], FAULT: ["lossy link"]},
    "closed forms of NVLinks: links that are slow for the whole run": {
        FIDELITY: ["NVLink closed forms"],
        FAULT: [name for name in _FAULTS if name not in {"slow GPU", "slow link for the whole run"}],
        LINK: ["NVLink"],
    },
    "flows beside packets have no faults": {FIDELITY: ["mixed"], FAULT: _FAULTS},
}
"""What Nadi refuses, as its documentation says: the choices of each limit, all of whose combinations are refused."""
PLAIN_WAY = {REUSE: 0, RESTART: 0, WORKERS: 0}
"""Factors that must not change results."""


def conflicts():
    """Return the choices that are refused together (LIMITS): sets of (factor, number of its value)."""
    return [
        frozenset(choice)
        for limit in LIMITS.values()
        for choice in itertools.product(
            *([(factor, FACTORS[factor].index(value)) for value in values] for factor, values in limit.items())
        )
    ]


def described(situation):
    return {factor: FACTORS[factor][number] for factor, number in situation.items()}

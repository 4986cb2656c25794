"""Values of every key of [network] and [system] other than its default, and what else a feature run chooses.

A *factor* is a key of the run file, or one of FABRIC, COLLECTIVE and WORKERS, which every run chooses. A *choice*
is a factor with one of its values. A test holds the keys here against those that `nadi.configuration.sections`
declares.
"""

from nadi.configuration.sections import NetworkSection, SystemSection
from nadi.configuration.work import JobSection
from nadi.pdes import balancing, congestion, disciplines, fidelity, wire
from nadi.workload import algorithms_of
from nadi.workload.kinds import KINDS

NPUS = 8
FABRIC, COLLECTIVE, WORKERS, OPTICAL = "fabric", "collective", "workers", "optical"
CHOSEN_BY_THE_RUN = {
    ("system", "collectives"),
    *(("jobs", key) for key in ("name", "traces", "gpus", "model", "plan", "framework", "serving")),
    *(("jobs", key) for key in ("trace_set", "groups", "all_gather_size", "strict")),
    ("network", "source_routes"),
}
"""Keys that COLLECTIVE gives, those of what jobs are made of, and a file of paths of the fabric."""
CONGESTION = "network.congestion"
"""Its values name the congestion control beside the parameters."""

_VALUES = {
    "network": {
        "fidelity": [*fidelity.networks()],
        "congestion_aware": [True, False],
        "endpoint_delay": ["300ns"],
        "reduction_bandwidth": ["100GB/s"],
        "collectives": ["coupled", "steps"],
        "send_latency": ["1us"],
        "acknowledged": [True],
        "resolution": ["1us"],
        "mtu": ["1KiB"],
        "header": ["100B"],
        "ack": ["64B"],
        "window": ["16KiB"],
        "queue_limit": ["64KiB"],
        "cut_through": [True],
        "rto": ["50us"],
        "max_retries": [100],
        "max_resends": [1000],
        "detection_time": ["10us"],
        "nvlink_framing": [False],
        "nvlink": ["closed-form"],
        "flows": [["all"], ["p2p"]],
        "p2p_share": [0.5],
        "switch": ["shared-buffer", "credits"],
        "buffer": ["4MB"],
        "pfc": [False],
        "pfc_alpha": [0.5],
        "pfc_headroom": ["100KB"],
        "pfc_resume_offset": ["16KB"],
        "ecn": [False],
        "ecn_kmin": ["20KB"],
        "ecn_kmax": ["1MB"],
        "ecn_pmax": [0.5],
        "ecn_by_rate": [{"100Gbps": ["10KB", "40KB", 0.5]}],
        "ecn_by_class": [{"1": ["10KB", "40KB", 0.5]}],
        "tiers": [
            {"leaf": {"buffer": "3MB", "ecn_kmin": "10KB"}},
            {"leaf": {"latency": "300ns"}},
            {"leaf": {"pfc": False, "trimming": True, "trim_threshold": "20KB", "trim_share": 0.5}},
            {"leaf": {"cut_through": True}},
            {"leaf": {"load_balancing": "spray"}},
            {"leaf": {"load_balancing": "grades"}, "spine": {"load_balancing": "flowlet"}},
        ],
        "ecn_last_hop": [False],
        "trimming": [True],
        "trim_threshold": ["20KB"],
        "trim_last_hop": [1.5],
        "trim_share": [0.25, 1.0],
        "trimmed_size": ["64B"],
        "discipline": disciplines.names(),
        "pfc_classes": [[1]],
        "pfc_rising_classes": [2],
        "class_weights": [[3, 1], [1, 2, 0]],
        "p2p_class": [1],
        "classes": [{"p2p": 1, "*": 0}, {"all": 1}, dict.fromkeys(KINDS, 1)],
        "virtual_lanes": [2, 8],
        "lane_buffer": ["9KiB"],
        "credit_unit": ["32B"],
        "credit_return": ["4KiB"],
        "credit_frame": ["84B"],
        "lane_weights": [[3, 1]],
        "high_lanes": [1],
        "high_limit": ["0B"],
        "queue_pairs": ["message"],
        "congestion_control": [name for name in congestion.names() if name != "none"],
        "congestion": [{"dcqcn": {"g": 0.01}}, {"hpcc": {"eta": 0.9}}, {"swift": {"ai_packets": 2.0}}],
        "cnp_interval": ["10us"],
        "cnp_delay": ["3us"],
        "receiver_credits": [True],
        "credit_window": ["32KiB"],
        "oversubscription": [4.0],
        "load_balancing": [name for name in balancing.names() if name != "ecmp"],
        "routing": [name for name in wire.detours.names() if name != "minimal"],
        "routing_delay": ["500ns"],
        "flowlet_gap": ["5us"],
        "grade_thresholds": [["4KiB", "8KiB", "64KiB"]],
        "entropy": [name for name in wire.entropy.names() if name != "fixed"],
        "paths": [4],
        "denied_paths": [["path 1"]],
        "nic_ports": ["all", "first", "hash"],
        "selective_repeat": [True, False],
        "reorder": [8],
        "delivery": ["rud", "rod"],
        "ack_every": ["0B"],
        "sleek": [True],
    },
    "system": {
        "concurrent_collectives": [True],
        "splits": [3],
        "dataset_splits": [2],
        "dimension_order": ["bandwidth-aware", "themis"],
        "scheduling": ["lifo", "priority"],
        "phases_per_dimension": [1, 2],
        "collectives_in_flight": [1],
        "rendezvous": ["16KiB"],
        "rendezvous_control": ["256B"],
        "compute_slowdown": [1.5],
        "one_at_a_time": [True],
        "tick": ["100ns"],
    },
    "engine": {"partitioner": ["blocks", "scatter"], "weights": ["fabric"]},
    "memory": {
        "remote": ["npu", "node"],
        "remote_latency": ["500ns"],
        "remote_bandwidth": ["10GB/s"],
        "remote_sharers": [2, 8],
    },
    "jobs": {
        "placement": ["rail", "scattered:seed=3", [7, 2, 5, 0]],
        "start": ["3us"],
        "repeat": [2],
        "iterations": [2],
        "traffic": [
            {"sizes": "hadoop", "load": 0.3, "duration": "30us"},
            {"sizes": "9KiB", "load": 0.3, "duration": "30us", "arrivals": "lognormal:sigma=2"},
            {"sizes": "9KiB", "load": 0.3, "duration": "30us", "queue_pairs": "pair"},
        ],
    },
}
COMPANY = {
    "network.reorder": {"selective_repeat": True},
    "network.trimming": {"pfc": False},
    "network.trim_threshold": {"pfc": False},
    "network.trim_last_hop": {"pfc": False, "trim_threshold": "20KB"},
    "network.trim_share": {"pfc": False, "trimming": True},
    "network.trimmed_size": {"pfc": False, "trimming": True},
    "network.receiver_credits": {"selective_repeat": True},
    "network.credit_window": {"receiver_credits": True, "selective_repeat": True},
    "network.oversubscription": {"receiver_credits": True, "selective_repeat": True},
    "network.ack_every": {"delivery": "rud"},
    "network.sleek": {"selective_repeat": True},
    "network.virtual_lanes": {"switch": "credits"},
    "network.lane_buffer": {"switch": "credits"},
    "network.credit_unit": {"switch": "credits"},
    "network.credit_return": {"switch": "credits"},
    "network.credit_frame": {"switch": "credits"},
    "network.lane_weights": {"switch": "credits", "virtual_lanes": 2},
    "network.high_lanes": {"switch": "credits", "virtual_lanes": 2},
    "network.high_limit": {"switch": "credits", "virtual_lanes": 2, "high_lanes": 1},
    "memory.remote": {"remote_bandwidth": "20GB/s"},
    "memory.remote_latency": {"remote": "npu", "remote_bandwidth": "20GB/s"},
    "memory.remote_bandwidth": {"remote": "npu"},
    "memory.remote_sharers": {"remote": "npu", "remote_bandwidth": "20GB/s"},
}
"""What is written beside a key that means nothing alone, unless the run chooses another value of that."""
SECTIONS = {"network": NetworkSection, "system": SystemSection, "jobs": JobSection}
"""Those of which every key must have a value here."""

ALWAYS = {
    "network.fidelity": _VALUES["network"]["fidelity"],
    FABRIC: [
        "switch:npus=8,rate=100Gbps",
        "dragonfly:p=2,a=2,h=1,groups=2,rate=100Gbps",
        "ring:npus=8,rate=100Gbps",
        "torus:sizes=4x2,rate=100Gbps",
        "leaf-spine:leaves=2,hosts_per_leaf=4,spines=2,rate=100Gbps",
        "rail-optimised:npus=8,gpus_per_host=4,hosts_per_rail_leaf=2,spines=1,rate=100Gbps",
        "rail-fat-tree:npus=8,gpus_per_host=2,hosts_per_unit=2,ports=2,spines=1,rate=100Gbps",
        "dgx-h100:npus=8",
        "dgx-h100-superpod:gpus=8",
    ],
    COLLECTIVE: [f"{kind} {name}" for kind in KINDS for name in algorithms_of(kind)],
    WORKERS: ["alone", "threads", "processes"],
}
"""Factors of which every run chooses a value."""
_CIRCUIT = {"ports": "leaf", "rate": "40Gbps"}
_TIMES = {"at": ["1us", "9us"], "period": "20us", "dark": "2us", "matchings": [[[0, 1]], []]}
_PHASES = {"phases": ["all", "p2p"], "controller_delay": "3us", "dark": "2us", "matchings": [[[0, 1]], []]}
OPTIONAL = {
    OPTICAL: [
        [_CIRCUIT | {"matchings": [[[0, 1]]]}],
        [_CIRCUIT | _TIMES | {"drain": "1us"}],
        [_CIRCUIT | _TIMES | {"in_flight": "hold"}],
        [_CIRCUIT | _TIMES | {"in_flight": "hold", "routes": "direct"}],
        [_CIRCUIT | {"at": ["0s", "30us"], "matchings": [[[0, 1]], []]}],
        [_CIRCUIT | _PHASES | {"drain": "1us"}],
        [_CIRCUIT | _PHASES | {"trigger": "begin"}],
    ]
} | {
    f"{section}.{key}": values
    for section, keys in _VALUES.items()
    for key, values in keys.items()
    if f"{section}.{key}" not in ALWAYS
}
"""Factors that a run may leave at their default."""
FACTORS = ALWAYS | OPTIONAL


def keys_with_values(section):
    """Return the keys of a section that some run has at a value other than its default."""
    return set(_VALUES[section]) | {key for own, key in CHOSEN_BY_THE_RUN if own == section}


def choices(factors=FACTORS):
    """Return all choices of factors with their values: (factor, number of its value)."""
    return [(factor, number) for factor, values in factors.items() for number in range(len(values))]

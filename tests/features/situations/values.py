"""Situations: named machines and clusters, the work on them, what fails there, and the ways in which Nadi runs it.

A factor is one of the names in capitals. Each situation has one value of every factor; the first value is the plain one.
"""

from topologies.clusters import clusters
from topologies.machines import machines

PLACE, GPUS, WORK, FIDELITY, FAULT, LINK = "place", "gpus", "work", "fidelity", "fault", "link"
COMPANY, REUSE, RESTART, WORKERS = "company", "reuse", "restart", "workers"

FACTORS = {
    PLACE: ["cluster dgx-h100-superpod"]
    + [f"cluster {name}" for name in clusters() if name != "dgx-h100-superpod"]
    + [f"machine {name}" for name in machines()],
    GPUS: [16, 8, 64],
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
    REUSE: ["exact", "off"],
    RESTART: [False, True],
    WORKERS: ["alone", "threads", "processes"],
}
PLAIN_WAY = {REUSE: 0, RESTART: 0, WORKERS: 0}
"""Factors that must not change results."""


def described(situation):
    """Return a situation as factors with their values instead of the numbers of these."""
    return {factor: FACTORS[factor][number] for factor, number in situation.items()}

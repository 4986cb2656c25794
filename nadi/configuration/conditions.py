"""Conditions under which keys of a run file have an effect; fields of sections declare those of their key.

`Annotated[int, needs(PACKETS)]` is a key that has an effect only in runs of packets. A condition looks at a settled
configuration, and is declared here, below the sections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nadi import pdes
from nadi.configuration import UNKNOWN, DurationSources
from nadi.pdes import NetworkModel, SharedBuffer, balancing, congestion, fidelity, settings_of, wire
from nadi.pdes.wire import CreditSwitch

if TYPE_CHECKING:
    from nadi.configuration.run_config import RunConfig
    from nadi.configuration.sections import NetworkSection

FABRIC_KEYS = (*(setting.key for setting in settings_of(SharedBuffer)), "p2p_class")
"""Keys that only switches with shared buffers have; those with credits have p2p_class, too."""
CLASS_KEYS = ("p2p_class", "classes")
"""Keys of traffic that switches with shared buffers and those with credits have."""
CREDIT_KEYS = tuple(setting.key for setting in settings_of(CreditSwitch))
"""Keys that only links with credits have."""


@dataclass(frozen=True)
class EffectContext:
    """A run and the sources of its times, as the input of conditions."""

    config: "RunConfig"  # settled configuration of the run
    times: DurationSources = UNKNOWN  # sources of the times of its nodes

    @property
    def network(self) -> "NetworkSection":
        """Return the section [network]."""
        return self.config.network


class Condition(NamedTuple):
    """Requirement of a key."""

    needs: str  # requirement in words of run files, to follow "needs"
    holds: Callable[[EffectContext], bool]  # function that returns whether a run meets the requirement


@dataclass(frozen=True)
class Needs:
    """Declaration of a field: its key has an effect only where all conditions hold."""

    conditions: tuple[Condition, ...]
    whatever_model: bool = False  # whether the key has an effect with models of the network that do not take it


def needs(*conditions: Condition) -> Needs:
    """Return the declaration of a key that needs all these conditions."""
    return Needs(conditions)


def _models(holds: Callable[[NetworkModel], bool]) -> Condition:
    return Condition(f"[network] fidelity = {fidelity.quoted(holds)}", lambda run: holds(run.network.model))


def takes(key: str) -> tuple[Condition, ...]:
    """Return the condition that the model of the network takes a key of [network]; () if all models do."""
    is_common = all(key in model.keys for model in fidelity.networks().values())
    return () if is_common else (_models(lambda model: key in model.keys),)


def _signals(network: "NetworkSection") -> frozenset[str]:
    """Return the signals that the congestion control takes; none if its name is unknown."""
    try:
        return frozenset(congestion.control(network.congestion_control).signals)
    except pdes.RunError:
        return frozenset()


def _balancing(name: str) -> balancing.Balancing:
    """Return the load balancing of a name; ECMP if it is unknown."""
    try:
        return balancing.balancing(name)
    except pdes.RunError:
        return balancing.ECMP


def _repeats_selectively(run: EffectContext) -> bool:
    network = run.network
    given = network.selective_repeat
    if given == "auto" and network.delivery != "auto":
        return network.delivery == "rud"
    several_paths = wire.detours.known(network.routing).reorders or network.entropy != wire.entropy.FIXED.name
    overtakes = several_paths or any(_balancing(name).reorders for name in network.balancings)
    return overtakes if given == "auto" else bool(given)


def _discipline_chooses_switch(run: EffectContext) -> bool:
    """Return whether no other keys than discipline and class_weights require shared buffers."""
    others = {"switch", "congestion_control", *FABRIC_KEYS} - {"discipline", "class_weights"}
    return not any(f"network.{key}" in run.config.named for key in others)


def _can_time_out(run: EffectContext) -> bool:
    """Return whether packets may be lost, so that retransmission timers matter."""
    network = run.network
    loses = any(fault.state or fault.error_rate for fault in run.config.faults)
    return bool(network.rto or network.queue_limit or network.switch == "shared-buffer" or loses)


PACKETS = _models(lambda model: model.has_packets)
DIVIDED = (
    Condition(
        f"{_models(lambda model: model.several_workers).needs} without flows",
        lambda run: run.network.model.several_workers and not run.network.flows,
    ),
    Condition(
        'a routing other than "ugal-g"', lambda run: run.network.several_workers or not run.network.model.has_packets
    ),
)
SIMULATED = _models(lambda model: model.has_links)
WHOLE_MESSAGES = _models(lambda model: any(hooks.act is not None for hooks in model.hooks))
OWN_REMOTE = Condition('remote = "npu"', lambda run: run.config.memory.remote == "npu")
SHARED = Condition('switch = "shared-buffer"', lambda run: run.network.switch == "shared-buffer")
CREDITS = Condition('switch = "credits"', lambda run: run.network.switch == "credits")
SEVERAL_LANES = Condition("virtual_lanes above 1", lambda run: (run.network.virtual_lanes or 1) > 1)
HIGH_LANES = Condition("high_lanes", lambda run: bool(run.network.high_lanes))
CLASSED = Condition(
    'switch = "shared-buffer" or "credits"', lambda run: run.network.switch in {"shared-buffer", "credits"}
)
QUEUES = Condition('switch = "output-queued"', lambda run: run.network.switch == "output-queued")
PFC = Condition("pfc = true", lambda run: run.network.anywhere("pfc"))
ECN = Condition("ecn = true", lambda run: run.network.anywhere("ecn"))
LOSSY = Condition(
    "pfc = false",
    lambda run: any(run.network.at_tier(tier, "pfc") is False for tier in ("", *(run.network.tiers or {}))),
)
THRESHOLD = Condition("trim_threshold", lambda run: bool(run.network.trim_threshold))
TRIMMING = Condition("trimming = true", lambda run: run.network.anywhere("trimming"))
CLASSES = Condition(
    "p2p_class or classes",
    lambda run: bool(run.network.p2p_class or run.network.classes) or _discipline_chooses_switch(run),
)
WEIGHTED = Condition('a discipline other than "strict"', lambda run: run.network.discipline != "strict")
CONTROL = Condition("congestion_control", lambda run: run.network.congestion_control != "none")
NOTIFIED = Condition("a congestion_control with notifications, as dcqcn", lambda run: "cnp" in _signals(run.network))
RECEIVER_CREDITS = Condition("receiver_credits = true", lambda run: run.network.receiver_credits)
LISTED = Condition('routing = "source"', lambda run: wire.detours.known(run.network.routing).by_source)
READS_QUEUES = Condition(
    'routing by queues, as "ugal-l"', lambda run: wire.detours.known(run.network.routing).reads_queues
)
ECMP = Condition('load_balancing = "ecmp"', lambda run: set(run.network.balancings) == {"ecmp"})
FLOWLETS = Condition(
    'load_balancing = "flowlet"', lambda run: any(_balancing(name).has_flowlets for name in run.network.balancings)
)
GRADES = Condition('load_balancing = "grades"', lambda run: "grades" in run.network.balancings)
SPREAD = Condition('an entropy other than "fixed"', lambda run: run.network.entropy != wire.entropy.FIXED.name)
ALL_PORTS = Condition(
    f"{SPREAD.needs}, or a rule for one port", lambda run: SPREAD.holds(run) or run.network.nic_ports != "all"
)
DENYING = Condition('entropy = "mrc"', lambda run: wire.entropy.entropy_rule(run.network.entropy).probes)
RUD = Condition('delivery = "rud"', lambda run: run.network.delivery == "rud")
SELECTIVE = Condition("selective_repeat = true", _repeats_selectively)
(ROUTED,) = takes("load_balancing")
BALANCED = Condition(
    f'{ROUTED.needs}, or load_balancing by destination ("static", "rail")',
    lambda run: ROUTED.holds(run) or _balancing(run.network.load_balancing).by_destination,
)
TIMEOUTS = Condition("rto, queue_limit, a shared buffer or faults that lose packets", _can_time_out)
DOWN = Condition('[[faults]] with state = "down"', lambda run: any(fault.state for fault in run.config.faults))
QUEUED = Condition(
    "phases_per_dimension or collectives_in_flight",
    lambda run: bool(run.config.system.phases_per_dimension or run.config.system.collectives_in_flight),
)
ASKED = Condition(
    "rendezvous or collectives_in_flight",
    lambda run: bool(run.config.system.rendezvous or run.config.system.collectives_in_flight),
)
FAULTS = Condition("[[faults]]", lambda run: bool(run.config.faults))
JOBS = Condition("[[jobs]]", lambda run: bool(run.config.jobs))
MODEL = Condition("model", lambda run: run.config.workload.model is not None)
TRACES = Condition("traces", lambda run: run.config.workload.traces is not None)
NODES = Condition(
    "traces or a model", lambda run: any(single.workload.traffic is None for single in run.config.single_jobs())
)
RANDOM = Condition("sizes", lambda run: run.config.workload.traffic is None or run.config.workload.traffic.file is None)
MODELLED = Condition('[compute] model = "auto" or "roofline"', lambda run: run.config.compute.model != "trace")
NUM_OPS = Condition("nodes with num_ops and no operators that the GPU does", lambda run: bool(run.times.num_ops))
TENSORS = Condition("nodes that take their time from tensor_size", lambda run: bool(run.times.tensors))
OPERATORS = Condition("nodes that name operators", lambda run: bool(run.times.operators))
GPU = Condition(
    "nodes that name operators, or peak_flops and [memory] bandwidth left to it",
    lambda run: bool(
        run.times.operators
        or (run.times.num_ops and run.config.compute.peak_flops is None)
        or (run.times.tensors and run.config.memory.bandwidth is None)
    ),
)
WHOLE_PROMPTS = Condition("chunk = 0", lambda run: run.config.serving is None or not run.config.serving.has_chunks)
DRAWN = Condition(
    "lengths that are drawn, as uniform:128-2048",
    lambda run: run.config.serving is None or ":" in run.config.serving.prompt + run.config.serving.generate,
)

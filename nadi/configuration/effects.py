"""Conditions under which keys of a run file have an effect, and the keys that a user set without any effect.

A key without effect is not an error: users reuse run files with another fidelity, and sweeps vary switches and
controls. `without_effect` lists all such keys, so that nobody attributes a result to one of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

import pdes
from nadi.configuration.sections import FABRIC_KEYS, NetworkSection, RunConfig
from pdes import NetworkModel, balancing, congestion, fidelity
from topologies import DimensionRouting, Graph
from topologies.units import format_rate, format_time


class DurationSources(NamedTuple):
    """Sources of the times of compute and memory nodes, besides durations in the traces."""

    operators: int  # number of nodes that take the times of their operators on a GPU
    num_ops: int  # number of nodes that take num_ops / peak_flops
    tensors: int  # number of nodes that take tensor_size / bandwidth


UNKNOWN = DurationSources(1, 1, 1)  # sources for traces that are not read yet: they may have all of them


class EffectContext(NamedTuple):
    """A run and the sources of its times, as the input of conditions."""

    config: RunConfig  # settled configuration of the run
    times: DurationSources  # sources of the times of its nodes

    @property
    def network(self) -> NetworkSection:
        """Return the section [network]."""
        return self.config.network


class Condition(NamedTuple):
    """Requirement of a key."""

    needs: str  # requirement in words of run files, to follow "needs"
    holds: Callable[[EffectContext], bool]  # function that returns whether a run meets the requirement


def _models(holds: Callable[[NetworkModel], bool]) -> Condition:
    return Condition(f"[network] fidelity = {fidelity.quoted(holds)}", lambda run: holds(run.network.model))


def _takes(key: str) -> tuple[Condition, ...]:
    """Return the condition that the model of the network takes a key of [network]; () if all models do."""
    is_common = all(key in model.keys for model in fidelity.networks().values())
    return () if is_common else (_models(lambda model: key in model.keys),)


def _of_models(key: str) -> tuple[Condition, ...]:
    """Return the conditions that models of the network declare for a key, each for runs with that model."""

    def condition(model: NetworkModel) -> Condition:
        needs, holds = model.conditions[key]
        return Condition(needs, lambda run: run.network.model is not model or holds(run.network))

    return tuple(condition(model) for model in fidelity.networks().values() if key in model.conditions)


def _signals(network: NetworkSection) -> frozenset[str]:
    """Return the signals that the congestion control takes; none if its name is unknown."""
    try:
        return frozenset(congestion.control(network.congestion_control).signals)
    except pdes.RunError:
        return frozenset()


def _balancing(network: NetworkSection) -> balancing.Balancing:
    """Return the load balancing; ECMP if its name is unknown."""
    try:
        return balancing.balancing(network.load_balancing)
    except pdes.RunError:
        return balancing.ECMP


def _repeats_selectively(run: EffectContext) -> bool:
    given = run.network.selective_repeat
    return _balancing(run.network).reorders if given == "auto" else bool(given)


def _discipline_chooses_switch(run: EffectContext) -> bool:
    """Return whether no other keys than discipline and class_weights require shared buffers."""
    others = {"switch", "congestion_control", *FABRIC_KEYS} - {"discipline", "class_weights"}
    return not any(f"network.{key}" in run.config.named for key in others)


def _can_time_out(run: EffectContext) -> bool:
    """Return whether packets may be lost, so that retransmission timers matter."""
    network = run.network
    loses = any(fault.state or fault.error_rate for fault in run.config.faults)
    return bool(network.rto or network.queue_limit or network.switch == "shared-buffer" or loses)


_PACKETS = _models(lambda model: model.has_packets)
_DIVIDED = Condition(
    f"{_models(lambda model: model.several_workers).needs} without flows", lambda run: run.network.several_workers
)
_SIMULATED = _models(lambda model: model.has_links)
_WHOLE_MESSAGES = _models(lambda model: any(hooks.act is not None for hooks in model.hooks))
_OWN_REMOTE = Condition('remote = "npu"', lambda run: run.config.memory.remote == "npu")
_SHARED = Condition('switch = "shared-buffer"', lambda run: run.network.switch == "shared-buffer")
_QUEUES = Condition('switch = "output-queued"', lambda run: run.network.switch == "output-queued")
_PFC = Condition("pfc = true", lambda run: run.network.pfc is True)
_ECN = Condition("ecn = true", lambda run: run.network.ecn is True)
_TRIMMING = Condition("trimming = true", lambda run: run.network.trimming is True)
_CLASSES = Condition("p2p_class = 1", lambda run: run.network.p2p_class == 1 or _discipline_chooses_switch(run))
_WEIGHTED = Condition('a discipline other than "strict"', lambda run: run.network.discipline != "strict")
_CONTROL = Condition("congestion_control", lambda run: run.network.congestion_control != "none")
_NOTIFIED = Condition("a congestion_control with notifications, as dcqcn", lambda run: "cnp" in _signals(run.network))
_FLOWLETS = Condition('load_balancing = "flowlet"', lambda run: _balancing(run.network).has_flowlets)
_SELECTIVE = Condition("selective_repeat = true", _repeats_selectively)
(_ROUTED,) = _takes("load_balancing")
_BALANCED = Condition(
    f'{_ROUTED.needs}, or load_balancing by destination ("static", "rail")',
    lambda run: _ROUTED.holds(run) or _balancing(run.network).by_destination,
)
_TIMEOUTS = Condition("rto, queue_limit, a shared buffer or faults that lose packets", _can_time_out)
_DOWN = Condition('[[faults]] with state = "down"', lambda run: any(fault.state for fault in run.config.faults))
_QUEUED = Condition(
    "phases_per_dimension or collectives_in_flight",
    lambda run: bool(run.config.system.phases_per_dimension or run.config.system.collectives_in_flight),
)
_ASKED = Condition(
    "rendezvous or collectives_in_flight",
    lambda run: bool(run.config.system.rendezvous or run.config.system.collectives_in_flight),
)
_FAULTS = Condition("[[faults]]", lambda run: bool(run.config.faults))
_JOBS = Condition("[[jobs]]", lambda run: bool(run.config.jobs))
_MODEL = Condition("model", lambda run: run.config.workload.model is not None)
_TRACES = Condition("traces", lambda run: run.config.workload.traces is not None)
_NODES = Condition(
    "traces or a model", lambda run: any(single.workload.traffic is None for single in run.config.single_jobs())
)
_RANDOM = Condition(
    "sizes", lambda run: run.config.workload.traffic is None or run.config.workload.traffic.file is None
)
_MODELLED = Condition('[compute] model = "auto" or "roofline"', lambda run: run.config.compute.model != "trace")
_NUM_OPS = Condition("nodes with num_ops and no operators that the GPU does", lambda run: bool(run.times.num_ops))
_TENSORS = Condition("nodes that take their time from tensor_size", lambda run: bool(run.times.tensors))
_OPERATORS = Condition("nodes that name operators", lambda run: bool(run.times.operators))
_GPU = Condition(
    "nodes that name operators, or peak_flops and [memory] bandwidth left to it",
    lambda run: bool(
        run.times.operators
        or (run.times.num_ops and run.config.compute.peak_flops is None)
        or (run.times.tensors and run.config.memory.bandwidth is None)
    ),
)
_WHOLE_PROMPTS = Condition("chunk = 0", lambda run: run.config.serving is None or run.config.serving.chunk == 0)
_DRAWN = Condition(
    "lengths that are drawn, as uniform:128-2048",
    lambda run: run.config.serving is None or ":" in run.config.serving.prompt + run.config.serving.generate,
)


def _keys(names: str, *conditions: Condition) -> dict[str, tuple[Condition, ...]]:
    """Return the conditions of each of several keys; without any, the keys always have an effect."""
    return dict.fromkeys(names.split(), conditions)


# conditions of keys of [network] besides that the model of the network takes them
_NETWORK = {
    **_keys("queue_limit", _QUEUES),
    **_keys("max_retries", _TIMEOUTS),
    **_keys("max_resends", _SHARED, _TRIMMING),
    **_keys("detection_time", _DOWN),
    **{key: _of_models(key) for model in fidelity.networks().values() for key in model.conditions},
    **_keys("buffer pfc pfc_alpha ecn trimming p2p_class", _SHARED),
    **_keys("pfc_headroom pfc_resume_offset", _SHARED, _PFC),
    **_keys("ecn_kmin ecn_kmax ecn_pmax ecn_by_rate", _SHARED, _ECN),
    **_keys("discipline", _SHARED, _CLASSES),
    **_keys("class_weights", _SHARED, _CLASSES, _WEIGHTED),
    **_keys("congestion", _CONTROL),
    **_keys("cnp_interval", _NOTIFIED),
    **_keys("flowlet_gap", _FLOWLETS),
    **_keys("reorder", _SELECTIVE),
    **_keys("queue_pairs", _NODES),
}
_WORKLOAD = {
    **_keys("traces trace_set model plan groups traffic"),
    **_keys("all_gather_size", _NODES),
    **_keys("framework", _MODEL),
    **_keys("strict", _TRACES),
}
CONDITIONS: Mapping[str, Mapping[str, tuple[Condition, ...]]] = {
    "workload": _WORKLOAD,
    "jobs": {**_WORKLOAD, **_keys("name gpus placement start repeat iterations serving")},
    "traffic": {
        **_keys("sizes load rate duration file"),
        **_keys("arrivals seed", _RANDOM),
        **_keys("queue_pairs", *_takes("queue_pairs")),
    },
    "serving": {
        **_keys("batch requests prompt generate chunk kv_tokens"),
        **_keys("prompt_tokens", _WHOLE_PROMPTS),
        **_keys("seed", _DRAWN),
    },
    "topology": _keys("spec name params file graph cluster gpus"),
    "system": {
        **_keys("collectives concurrent_collectives one_at_a_time compute_slowdown"),
        **_keys("splits dataset_splits dimension_order phases_per_dimension"),
        **_keys("scheduling", _SIMULATED, _QUEUED),
        **_keys("collectives_in_flight rendezvous tick", _PACKETS),
        **_keys("rendezvous_control", _PACKETS, _ASKED),
    },
    "network": {
        **{key: (*_takes(key), *_NETWORK.get(key, ())) for key in NetworkSection.model_fields},
        "load_balancing": (_BALANCED,),
    },
    "compute": {
        **_keys("model"),
        **_keys("peak_flops", _MODELLED, _NUM_OPS),
        **_keys("gpu efficiency", _MODELLED, _GPU),
        **_keys("tables vendor_tables scale_from pace", _MODELLED, _OPERATORS),
    },
    "memory": {
        **_keys("latency", _MODELLED),
        **_keys("bandwidth", _MODELLED, _TENSORS),
        **_keys("remote remote_npus remote_latency remote_bandwidth"),
        **_keys("remote_sharers", _WHOLE_MESSAGES, _OWN_REMOTE),
    },
    "engine": {
        **_keys("seed"),
        **_keys("reuse fast_forward", _PACKETS),
        **_keys("checkpoint", _SIMULATED),
        **_keys("backend workers share_memory lps_per_worker partitioner weights", _DIVIDED),
    },
    "output": {
        **_keys("dir nodes flows report"),
        **_keys("sample", _PACKETS),
        **_keys("alone", _JOBS),
        **_keys("without_faults", _FAULTS),
    },
    "energy": _keys("table"),
}
"""Conditions by section and key; a key has no effect unless all of them hold. Those of a job, and of its serving and
traffic, are conditions of the job alone. [[faults]] have separate rules."""


class IdleFault(NamedTuple):
    """An entry of [[faults]], and why it changes nothing."""

    text: str  # place, change and time as a phrase
    at_ps: int  # time at which the fault begins
    reason: str  # why it changes nothing at any time; "" = it may change something


class WithoutEffect(NamedTuple):
    """Keys and faults that a user set and that may have no effect."""

    keys: tuple[str, ...]  # keys with their missing requirements, "[network] flowlet_gap (needs ...)"
    faults: tuple[IdleFault, ...]  # all faults of the run file
    seed: tuple[str, ...]  # the seed, if no choice is made at random

    def sentence(self, finish_ps: int | None = None) -> str:
        """Return one sentence that lists all without effect in a run that ends then, "" if there is nothing."""
        texts = list(self.keys)
        for number, fault in enumerate(self.faults):
            reason = fault.reason
            if not reason and finish_ps is not None and fault.at_ps >= finish_ps:
                reason = f"it begins at {format_time(fault.at_ps)}, the run ends at {format_time(finish_ps)}"
            texts += [f"[faults.{number}] ({reason})"] * bool(reason)
        texts += self.seed
        return f"without effect here: {', '.join(texts)}" if texts else ""


def without_effect(
    config: RunConfig,
    time_sources: DurationSources = UNKNOWN,
    graph: Graph | None = None,
    faults: pdes.Faults | None = None,
) -> WithoutEffect:
    """Return the keys and faults which a user set and which have no effect.

    `time_sources` are those of times of nodes. Fabric and its faults are None if not known yet.
    """
    named = keys_without_effect(config, time_sources).items()
    decides = graph is None or "engine.seed" not in config.named or _chooses_at_random(config, graph)
    seed = () if decides else ("[engine] seed (needs packets, or several equally short ways between two NPUs)",)
    keys = tuple(f"{key} (needs {needs})" for key, needs in named)
    return WithoutEffect(keys, tuple(_idle_faults(config, graph, faults)), seed)


def without_effect_in_all(configs: Sequence[RunConfig]) -> str:
    """Return a sentence that lists the keys without effect in all of several runs, as `without_effect`."""
    by_run = [keys_without_effect(config) for config in configs]
    common = [f"{key} (needs {needs})" for key, needs in by_run[0].items() if all(key in keys for keys in by_run)]
    return f"without effect in all {len(configs)} runs: {', '.join(common)}" if common else ""


def keys_without_effect(config: RunConfig, times: DurationSources = UNKNOWN) -> dict[str, str]:
    """Return the keys of the user that have no effect, "[network] flowlet_gap", each with its missing requirement."""
    needs_by_key = {}
    for name, run, section in _sections(config, times):
        for key, conditions in CONDITIONS[section].items():
            missing = next((condition for condition in conditions if not condition.holds(run)), None)
            if missing is not None and f"{name}.{key}" in config.named:
                needs_by_key[f"[{name}] {key}"] = missing.needs
    return needs_by_key


def _sections(config: RunConfig, times: DurationSources) -> Iterator[tuple[str, EffectContext, str]]:
    """Yield the name of each section of a run file, the run of its conditions, and its key in CONDITIONS."""
    run = EffectContext(config, times)
    yield from ((section, run, section) for section in CONDITIONS if section not in {"jobs", "traffic"})
    yield "workload.traffic", run, "traffic"
    for number, job in enumerate(config.jobs):
        alone = EffectContext(config.of_job(job), times)
        yield f"jobs.{number}", alone, "jobs"
        yield from ((f"jobs.{number}.{section}", alone, section) for section in ("serving", "traffic"))


def _chooses_at_random(config: RunConfig, graph: Graph) -> bool:
    """Return whether a run may make a choice by the seed: the order of packets of one time, or one of several ways."""
    if config.network.model.has_packets or isinstance(graph.routing, DimensionRouting):
        return True
    is_alone = graph.routing.home.shape[1] == 1 and (np.diff(graph.routing.set_ptr) <= 1).all()
    return not is_alone


def _idle_faults(config: RunConfig, graph: Graph | None, faults: pdes.Faults | None) -> Iterator[IdleFault]:
    """Yield each fault with the reason why it changes nothing, as far as that is known before the run."""
    link_faults = iter(faults.links if faults is not None else ())
    for fault in config.faults:
        links = next(link_faults, None) if fault.npu is None else None
        reason = ""
        if fault.slowdown == 1:
            reason = "slowdown is 1"
        elif fault.added_latency == 0:
            reason = "added_latency is 0"
        elif (
            fault.rate and graph is not None and links and (graph.link_rate_bps[list(links.links)] == fault.rate).all()
        ):
            reason = f"the rate is {format_rate(fault.rate)} without it"
        yield IdleFault(fault.text, fault.at, reason)

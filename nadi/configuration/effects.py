"""Keys of a run file that a user set without any effect.

A key without effect is not an error: users reuse run files with another fidelity, and sweeps vary switches and
controls. `Effects` lists all such keys, so that nobody attributes a result to one of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import BaseModel

from nadi import pdes
from nadi.configuration.conditions import Condition, EffectContext, Needs, needs, takes
from nadi.configuration.machine import ComputeSection, EnergySection, MemorySection, TopologySection
from nadi.configuration.run_config import RunConfig
from nadi.configuration.sections import EngineSection, NetworkSection, OutputSection, SystemSection
from nadi.configuration.work import JobSection, ServingSection, TrafficSection, WorkloadSection
from nadi.inputs.units import format_rate, format_time
from nadi.topologies import Graph


def _conditions(section: type[BaseModel]) -> dict[str, tuple[Condition, ...]]:
    """Return the conditions of each key of a section that its field declares, not those that a model declares."""
    found = {}
    for key, field in section.model_fields.items():
        declared = next((each for each in field.metadata if isinstance(each, Needs)), needs())
        taken = takes(key) if section is NetworkSection and not declared.whatever_model else ()
        found[key] = (*taken, *declared.conditions)
    return found


CONDITIONS: Mapping[str, Mapping[str, tuple[Condition, ...]]] = {
    "workload": _conditions(WorkloadSection),
    "jobs": _conditions(JobSection),
    "traffic": _conditions(TrafficSection),
    "serving": _conditions(ServingSection),
    "topology": _conditions(TopologySection),
    "system": _conditions(SystemSection),
    "network": _conditions(NetworkSection),
    "compute": _conditions(ComputeSection),
    "memory": _conditions(MemorySection),
    "engine": _conditions(EngineSection),
    "output": _conditions(OutputSection),
    "energy": _conditions(EnergySection),
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


def _conditions_of(section: str, network: NetworkSection) -> Mapping[str, tuple[Condition, ...]]:
    """Return the conditions of a section's keys in runs of a network, whose model may declare more for [network]."""
    declared = CONDITIONS[section]
    if section != "network":
        return declared

    def condition(needs: str, holds: Callable[[Any], bool]) -> Condition:
        return Condition(needs, lambda _: holds(network))

    of_model = network.model.conditions.items()
    return {**declared, **{key: (*declared.get(key, ()), condition(*each)) for key, each in of_model}}


@dataclass(frozen=True)
class Effects(EffectContext):
    """A run, as far as it is known, and which keys and faults of its configuration have no effect on it."""

    graph: Graph | None = None  # fabric of the run; None = not known yet
    faults: pdes.Faults | None = None  # faults of the fabric; None = not known yet

    def without(self) -> WithoutEffect:
        """Return the keys and faults which a user set and which have no effect."""
        decides = "engine.seed" not in self.config.named or self._chooses_at_random()
        seed = () if decides else ("[engine] seed (needs packets, or several equally short ways between two NPUs)",)
        keys = tuple(f"{key} (needs {needs})" for key, needs in self.keys().items())
        return WithoutEffect(keys, tuple(self._idle_faults()), seed)

    def keys(self) -> dict[str, str]:
        """Return the user's keys without effect, "[network] flowlet_gap", each with its missing requirement."""
        needs_by_key = {}
        for name, run, section in self._sections():
            for key, conditions in _conditions_of(section, run.network).items():
                missing = next((condition for condition in conditions if not condition.holds(run)), None)
                if missing is not None and f"{name}.{key}" in self.config.named:
                    needs_by_key[f"[{name}] {key}"] = missing.needs
        return needs_by_key

    def _sections(self) -> Iterator[tuple[str, EffectContext, str]]:
        """Yield the name of each section of a run file, the run of its conditions, and its key in CONDITIONS."""
        yield from ((section, self, section) for section in CONDITIONS if section not in {"jobs", "traffic"})
        yield "workload.traffic", self, "traffic"
        for number, job in enumerate(self.config.jobs):
            alone = replace(self, config=self.config.of_job(job))
            yield f"jobs.{number}", alone, "jobs"
            yield from ((f"jobs.{number}.{section}", alone, section) for section in ("serving", "traffic"))

    def _chooses_at_random(self) -> bool:
        """Return whether the run may choose by the seed: the order of packets of one time, or one of several ways."""
        graph = self.graph
        return graph is None or self.network.model.has_packets or graph.routing.has_choice()

    def _idle_faults(self) -> Iterator[IdleFault]:
        """Yield each fault with the reason why it changes nothing, as far as that is known before the run."""
        graph, link_faults = self.graph, iter(self.faults.links if self.faults is not None else ())
        for fault in self.config.faults:
            links = next(link_faults, None) if fault.npu is None else None
            reason = ""
            if fault.slowdown == 1:
                reason = "slowdown is 1"
            elif fault.added_latency == 0:
                reason = "added_latency is 0"
            elif fault.rate and graph and links and (graph.link_rate_bps[list(links.links)] == fault.rate).all():
                reason = f"the rate is {format_rate(fault.rate)} without it"
            yield IdleFault(fault.text, fault.at, reason)


def without_effect_in_all(configs: Sequence[RunConfig]) -> str:
    """Return a sentence that lists the keys without effect in all of several runs."""
    by_run = [Effects(config).keys() for config in configs]
    common = [f"{key} (needs {needs})" for key, needs in by_run[0].items() if all(key in keys for keys in by_run)]
    return f"without effect in all {len(configs)} runs: {', '.join(common)}" if common else ""

"""Quick lower bounds of step times, from one layer of each kind: no traces are generated and nothing is simulated.

A search of plans for hundreds of GPUs has thousands of candidates, and their bounds (`space.bound_ps`) take longer than
anything else. Most candidates are so slow that less precise bounds exclude them. These take about a thousandth of the
time: plans that differ only in the pipeline and in data parallelism have equal layers, and a stage takes at least

- the operators of all its layers, which an NPU computes one at a time,
- the collectives that all later operators wait for, except where two passes alternate; each takes at least the time
  in which the links of a member send its bytes,
- the first forward pass through all earlier stages and the last backward pass back through them.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadi.studies.planner.step import TargetMachine, on_target, with_micro_batches
from nadi.topologies import NVSWITCH, Graph
from nadi.workload.collectives.schedules import KeptResults
from nadi.workload.generators import training
from nadi.workload.generators.models import Model
from nadi.workload.generators.training.rules import Framework
from nadi.workload.generators.training.stage import passes_of_chunk
from nadi.workload.kinds import KIND_OF_COMM_TYPE, KINDS

_PS_PER_BYTE = 8e12  # picoseconds per byte at one bit per second
_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})
"""Kinds of which a member of n sends or receives at least (n - 1) / n of the buffer."""
_WHOLE = frozenset({"all-reduce"})  # kinds of which a member sends the whole buffer
_OF_PIPELINE = frozenset({"pp", "vpp", "dp", "global_batch", "uneven", "schedule"})
"""Fields of a plan that do not change the operators and collectives of a layer for one micro-batch."""
_LAYER_FIELDS = tuple(name for name in training.ParallelPlan.model_fields if name not in _OF_PIPELINE)
_KEPT_BYTES = 16 << 20  # maximum memory of what a search keeps
_LAYER_BYTES, _NUMBER_BYTES = 32768, 512  # bytes of an entry: layers of a plan, a number
_ROUNDS = 3  # micro-batches per stage after which further ones add the same passes


def layer_groups(plan: training.ParallelPlan) -> dict[str, tuple[int, int]]:
    """Return the families of groups of a layer's collectives: number of members, and distance of their numbers.

    Args:
        plan: The parallel plan, with all values settled.
    """
    return {
        "tp": (plan.tp, 1),
        "adapters": (plan.tp, 1),
        "cp": (plan.cp, plan.tp),
        "ep": (plan.ep, plan.etp),
        "tp-cp": (plan.tp * plan.cp, 1),
        "etp": (plan.etp, 1),
        "ep-domain": (plan.domain_members, plan.etp),
        "ep-network": (plan.ep // plan.domain_members, plan.etp * plan.domain_members),
    }


class _Step(NamedTuple):
    """An item of a pass: operators or a collective."""

    computed_ps: int  # time of the operators; 0 for a collective
    collective: tuple[str, str]  # family and kind of a collective; ("", "") for operators
    sent_bytes: int  # bytes of the collective's whole buffer
    is_weights: bool  # whether the item is for gradients of weights
    key: str  # key by which other items wait for the collective; "" = all later items wait for it
    needs: tuple[str, ...]  # keys of the collectives that the item waits for


_LayerSteps = tuple[list[_Step], list[_Step]]  # of the forward and the backward pass


class _PassTimes(NamedTuple):
    """Times of one pass of one micro-batch, float64[stages, chunks] in picoseconds."""

    computed: NDArray[np.float64]  # operators alone
    chain: NDArray[np.float64]  # operators and the collectives that they wait for
    data: NDArray[np.float64]  # the same without gradients of weights


class _Passes(NamedTuple):
    """Numbers of passes of a step, float64[stages, chunks]."""

    forward: NDArray[np.float64]  # forward passes that alternate with no other pass
    backward: NDArray[np.float64]  # backward passes that alternate with no other pass
    pairs: NDArray[np.float64]  # float64[stages, chunks, chunks]: forward passes that alternate with backward passes


class QuickBounds:
    """The quick lower bounds of a search, which keep the layers of the plans that were asked for last."""

    def __init__(self, machine: TargetMachine, model: Model, framework: Framework) -> None:
        """Describe what all plans share.

        Args:
            machine: The GPUs with their fabric and operator times.
            model: The architecture of the model.
            framework: The software whose overlap and schedules apply.
        """
        self._machine, self._model, self._framework = machine, model, framework
        self._rate_bps, self._leaving_bps = _rates_bps(machine.graph)
        # A layer of each kind, by experts and window, and both ends of the model
        self._kind_of_layer = [(model.has_experts(number), model.window_of(number)) for number in range(model.layers)]
        self._examples = {self._kind_of_layer[number]: number for number in reversed(range(model.layers))}
        layers = [training.Chunk(range(n, n + 1), -1, is_first=False, is_last=False) for n in self._examples.values()]
        self._kinds = [*layers, *(training.Chunk(range(0), -1, is_first=end == 0, is_last=end == 1) for end in (0, 1))]
        self._kept = KeptResults(_KEPT_BYTES)

    def bound_ps(self, plan: training.ParallelPlan) -> float:
        """Return a minimum step time of a settled plan in ps, 0 if its stages are too unlike for this bound.

        Args:
            plan: The parallel plan, with all values settled.
        """
        plan = on_target(self._machine, self._model, plan, self._framework)
        if plan.imbalance or plan.is_mirrored:
            return 0.0
        numbers = self._numbers_of_kinds(plan)
        key = tuple(getattr(plan, name) for name in _LAYER_FIELDS)
        layers = self._kept.get(key, lambda: self._layers(plan), lambda _: _LAYER_BYTES)
        ps_per_byte = self._ps_per_byte(plan, {step.collective for pair in layers for way in pair for step in way})
        forward, backward = (
            _PassTimes(*np.moveaxis(numbers @ [_times_ps(layer[way], ps_per_byte) for layer in layers], -1, 0))
            for way in (0, 1)
        )
        if plan.overlap_ep:  # gradients of weights are beside exchanges
            backward = backward._replace(chain=np.maximum(backward.computed, backward.data))
        passes = self._passes(plan)
        # Each pass of a pair waits for its own collectives only, and both end before the next passes begin
        pair_ps = np.maximum(forward.computed[:, :, None] + backward.computed[:, None, :], forward.chain[:, :, None])
        pair_ps = np.maximum(pair_ps, backward.chain[:, None, :])
        whole_ps = (passes.forward * forward.chain + passes.backward * backward.chain).sum(axis=1)
        whole_ps += (passes.pairs * pair_ps).sum(axis=(1, 2))
        if plan.pp == 1:
            return float(whole_ps.max())
        # Gradients of weights may come after the last send
        later_ps = backward.chain - backward.data
        short = replace(training.pipeline_of(plan), micro_batches=plan.pp)
        is_later = bool(plan.defer_embedding_wgrad or plan.overlap_ep) or any(work.is_split for work in short.order(0))
        to_last_send_ps = whole_ps - is_later * training.micro_batches(plan) * later_ps.sum(axis=1)
        last_ps = backward.chain - is_later * later_ps
        # sums over the earlier stages
        fill_ps, drain_ps = (np.cumsum(column[:, 0]) - column[:, 0] for column in (forward.chain, last_ps))
        return float(max((fill_ps + whole_ps).max(), (fill_ps + to_last_send_ps + drain_ps).max()))

    def _numbers_of_kinds(self, plan: training.ParallelPlan) -> NDArray[np.int64]:
        """Return int64[stages, chunks, kinds]: the number of layers of each kind, and of ends of the model."""
        numbers = []
        for of_chunks in training.chunks(self._model, plan):
            layers = [self._kind_of_layer[chunk.layers.start : chunk.layers.stop] for chunk in of_chunks]
            ends = [(chunk.is_first, chunk.is_last) for chunk in of_chunks]
            rows = zip(layers, ends, strict=True)
            numbers.append([[*map(own.count, self._examples), *own_ends] for own, own_ends in rows])
        return np.array(numbers, np.int64)

    def _layers(self, plan: training.ParallelPlan) -> list[_LayerSteps]:
        """Return what each kind of layer and each end of the model does for one micro-batch."""
        of_kinds = (passes_of_chunk(self._model, plan, kind) for kind in self._kinds)
        return [(self._steps(plan, forward), self._steps(plan, backward)) for forward, backward in of_kinds]

    def _steps(self, plan: training.ParallelPlan, items: training.Items) -> list[_Step]:
        """Return the operators and collectives of a pass; other items take no time in this bound."""
        copied, settings = training.copied_groups(self._framework, plan), self._machine.collectives
        groups, times = layer_groups(plan), self._machine.compute.times
        steps = []
        for item in items:
            if isinstance(item, training.Compute) and not item.on_host_micros and times is not None:
                steps.append(_Step(times.sum_ps(item.operators), ("", ""), 0, item.weights, "", item.needs))
            elif isinstance(item, training.GroupCollective) and item.family in groups and item.family not in copied:
                kind = int(KIND_OF_COMM_TYPE[item.kind])
                factor = int(settings.buffer_factor(np.array([groups[item.family][0]]))[kind, 0])
                size = 0 if item.splits[0] else item.bytes * factor
                steps.append(_Step(0, (item.family, KINDS[kind]), size, item.weights, item.key, item.needs))
        return steps

    def _ps_per_byte(
        self, plan: training.ParallelPlan, names: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], float]:
        """Return the minimum time per byte of a buffer, by family and kind of collective; 0 for operators."""
        groups, found = layer_groups(plan) | {"": (1, 1)}, {}
        for family, kind in names:
            count, distance = groups[family]
            shared = (count - 1) / count * (kind in _SHARED) + (kind in _WHOLE) * (count > 1)
            found[family, kind] = shared * _PS_PER_BYTE / self._rate_bps
            if kind == "all-to-all" and self._leaving_bps:
                place = count, distance, training.stage_size(plan), plan.pp
                share = self._kept.get(place, partial(self._leaving_share, *place), lambda _: _NUMBER_BYTES)
                found[family, kind] = max(found[family, kind], share * _PS_PER_BYTE / self._leaving_bps)
        return found

    def _passes(self, plan: training.ParallelPlan) -> _Passes:
        """Return the numbers of passes of a plan; those of many micro-batches follow from two smaller numbers."""
        count, few, more = training.micro_batches(plan), _ROUNDS * plan.pp, (_ROUNDS + 1) * plan.pp
        if not plan.overlap_ep:
            shape = plan.pp, training.pipeline_of(plan).chunks
            return _Passes(np.full(shape, float(count)), np.full(shape, float(count)), np.zeros((*shape, 1)))
        pipeline = plan.pipeline_schedule, plan.pp, plan.vpp

        def of(number: int) -> _Passes:
            make = partial(_counted, with_micro_batches(plan, number))
            return self._kept.get((*pipeline, number), make, lambda passes: sum(each.nbytes for each in passes))

        if count <= more:
            return of(count)
        factor = (count - more) / (more - few)
        return _Passes(*(second + factor * (second - first) for first, second in zip(of(few), of(more), strict=True)))

    def _leaving_share(self, count: int, distance: int, stage_npus: int, num_stages: int) -> float:
        """Return the share of an all-to-all that some member sends to other hosts, the minimum over all stages."""
        members = (stage_npus * np.arange(num_stages))[:, None] + distance * np.arange(count)
        host = np.sort(self._machine.graph.host[members], axis=1)
        shares = []
        for hosts in np.unique(host, axis=0):
            in_host = np.unique(hosts, return_counts=True)[1]
            shares.append((count - int(in_host.min())) / count)
        return min(shares)


def _rates_bps(graph: Graph) -> tuple[float, float]:
    """Return the maximum rates at which an NPU sends: over all its links, and to other hosts; 0 = not known."""
    src, dst, rate_bps = graph.link_src, graph.link_dst, graph.link_rate_bps.astype(np.float64)
    sends, receives = src < graph.npus, dst < graph.npus
    sent_bps = np.bincount(src[sends], rate_bps[sends], graph.npus)
    received_bps = np.bincount(dst[receives], rate_bps[receives], graph.npus)
    rate = float(max(sent_bps.max(), received_bps.max()))
    if (sends & receives).any():  # NPUs may forward what others of their host send
        return rate, 0.0
    # NVSwitches that reach the NPUs of one host only
    up = np.flatnonzero(sends & (graph.node_kind[dst] == NVSWITCH))
    first_host = np.full(graph.nodes, np.iinfo(np.int64).max)
    last_host = np.full(graph.nodes, -1)
    np.minimum.at(first_host, dst[up], graph.host[src[up]])
    np.maximum.at(last_host, dst[up], graph.host[src[up]])
    to_others = np.zeros(graph.nodes, np.bool_)
    to_others[src[~sends & ~receives]] = True
    stays = (graph.node_kind == NVSWITCH) & (first_host == last_host) & ~to_others
    leaves = sends & ~stays[dst]
    return rate, float(np.bincount(src[leaves], rate_bps[leaves], graph.npus).max())


def _times_ps(steps: Iterable[_Step], ps_per_byte: dict[tuple[str, str], float]) -> tuple[float, float, float]:
    """Return the fields of _PassTimes for one layer in ps."""
    computed_ps = chain_ps = later_ps = 0.0
    ends_ps: dict[str, float] = {}  # by key
    for step in steps:
        begin_ps = max([chain_ps, *(ends_ps.get(key, 0.0) for key in step.needs)])
        end_ps = begin_ps + step.computed_ps + step.sent_bytes * ps_per_byte[step.collective]
        computed_ps += step.computed_ps
        if step.key:
            ends_ps[step.key] = end_ps
        else:
            later_ps += (end_ps - chain_ps) * step.is_weights
            chain_ps = end_ps
    return computed_ps, chain_ps, chain_ps - later_ps


def _counted(plan: training.ParallelPlan) -> _Passes:
    """Return the numbers of passes of a plan, counted in the order of each stage."""
    pipeline = training.pipeline_of(plan)
    shape = plan.pp, pipeline.chunks
    passes = _Passes(np.zeros(shape), np.zeros(shape), np.zeros((*shape, pipeline.chunks)))
    for stage in range(plan.pp):
        works = iter(pipeline.order(stage))
        for work in works:
            if work.is_paired:
                passes.pairs[stage, work.chunk, next(works).chunk] += 1
            elif work.kind != "weights":
                (passes.forward if work.kind == "forward" else passes.backward)[stage, work.chunk] += 1
    return passes

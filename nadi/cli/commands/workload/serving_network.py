"""Communication times of serving on a cluster, for the scheduler's clock: closed forms on an idle network."""

from functools import cache

import numpy as np

from nadi import topologies, workload
from nadi.configuration.sections import NetworkSection
from nadi.pdes.fidelity import FASTEST
from nadi.simulation import network_settings as fabric
from nadi.simulation.closed_forms import CollectiveCosts, Curve, MessageKeys
from nadi.simulation.network_settings import network_settings
from nadi.topologies.clusters import find
from nadi.workload import KINDS, CollectiveSettings
from nadi.workload.collectives import defaults_on
from nadi.workload.generators.inference import Link, Network
from nadi.workload.generators.training import GroupCollective, ParallelPlan, families, stage_size
from nadi.workload.kinds import ALL_GATHER
from nadi.workload.program import SendColumns


def network(cluster_name: str, num_gpus: int) -> Network:
    """Return the network of the first GPUs of a cluster: a function from a plan and its first NPU to a Link.

    Args:
        cluster_name: Name or file of the cluster.
        num_gpus: Number of GPUs, the first ones of the cluster, that serve.
    """
    cluster = find(cluster_name)
    graph = topologies.build(cluster.topology(num_gpus))
    section = NetworkSection.model_validate({**cluster.network, "fidelity": FASTEST})
    settings = fabric.fitted(graph, network_settings(section, record_flows=False))
    how = CollectiveSettings(defaults_on(graph) | cluster.collectives)
    costs = CollectiveCosts(graph, settings)
    program = workload.collective_program("all-reduce", graph.npus, 1, "ring")
    sends = SendColumns(how, graph, np.arange(graph.npus), {}, {})

    @cache
    def curve(kind: str, members: tuple[int, ...]) -> Curve:
        return costs.curve(program, kind, how.algorithm_of(kind), np.array(members, np.int64))

    def of_engine(plan: ParallelPlan, first: int) -> Link:
        groups = {family: tuple(npu + first for npu in own[0]) for family, own in families(plan).items()}
        beside = first + stage_size(plan)

        def collective_ps(item: GroupCollective) -> float:
            members = groups[item.family]
            # the curve takes the whole buffer, of which an all-gather's item.bytes is one member's part
            whole = item.bytes * (len(members) if item.kind == ALL_GATHER else 1)
            return curve(KINDS[item.kind], members).at(whole).time_ps

        @cache
        def message_ps(size: int) -> float:
            sent = sends.alone(first, beside, size)
            columns = (np.array([value]) for value in (first, beside, sent.wire_bytes, sent.shares, sent.parts))
            return sent.wait_ps + float(costs.of_messages(MessageKeys(*columns)).total_ps[0])

        return Link(collective_ps, message_ps)

    return of_engine

"""Collectives in one NVLink domain at closed forms, beside packets or flows."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import nadi
from nadi.configuration.sections import NetworkSection
from nadi.errors import ConfigError
from nadi.launching.progress import NoProgress
from nadi.pdes import Faults, LinkFault
from nadi.simulation.closed_forms import running
from nadi.simulation.closed_forms.costs import PLANNER_EFFORT, CollectiveCosts
from nadi.simulation.mixed_fidelity import with_nvlink_closed_forms
from nadi.simulation.network_settings import network_settings
from nadi.simulation.run import run_program
from nadi.topologies import NVSWITCH, build, clusters
from nadi.workload import CollectiveSettings, ComputeModel, build_program
from tests.failures.common import cable
from tests.fidelity import test_training_steps as steps
from tests.pdes.cases import Traces

SETTINGS = network_settings(NetworkSection())
GRAPH = build(clusters.find("dgx-h100-superpod").topology(16))
HOST = range(8, 16)


def program_of(traces, how, graph=GRAPH):
    return build_program(
        traces.tables(), range(graph.npus), graph.npus, {"host": list(HOST)}, ComputeModel("trace"), how, fabric=graph
    )


def closed_form_ps(program, how, settings=SETTINGS):
    costs = CollectiveCosts(GRAPH, settings, PLANNER_EFFORT)
    return int(running.costed(running.laid_out(GRAPH, program, costs), costs, how).time_ps[0])


def on_host(kind, size, begin_us=(0,) * 8):
    """Each NPU of a host computes until it begins, then all do a collective."""
    traces = Traces(GRAPH.npus)
    for npu, micros in zip(HOST, begin_us, strict=True):
        traces.compute(npu, micros)
    traces.collective(HOST, kind, size, group="host", deps=dict.fromkeys(HOST, (0,)))
    return traces


def ran(program, how, **network):
    settings = network_settings(NetworkSection(**network))
    return run_program(GRAPH, with_nvlink_closed_forms(GRAPH, program, settings, how), settings, NoProgress())


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 1 << 28])
@pytest.mark.parametrize("algorithm", ["nccl", "ring", "nvls", "direct"])
def test_collective_takes_its_closed_form(algorithm, size, fidelity):
    """To the picosecond by packets; by flows, a message of a byte takes a little longer or shorter."""
    how = CollectiveSettings({"all-reduce": algorithm})
    program = program_of(on_host(0, size), how)
    taken = ran(program, how, fidelity=fidelity)
    assert taken.counters["flows"] == 14  # a report and an answer for each but the first
    wanted = closed_form_ps(program, how)
    assert taken.finish_time_ps == pytest.approx(wanted, abs=0 if fidelity == "packet" else wanted * 0.005)


def test_members_end_a_closed_form_after_the_last_begins():
    how = CollectiveSettings({"all-reduce": "nccl"})
    last_us = 70
    program = program_of(on_host(0, 1 << 24, (5, 1, last_us, 3, 0, 20, 9, 2)), how)
    taken = ran(program, how)
    ends = [int(taken.node_finish_ps[taken.npu_node_ptr[npu] + 1]) - last_us * 10**6 for npu in HOST]
    wanted = closed_form_ps(program_of(on_host(0, 1 << 24), how), how)
    assert ends[1:] == pytest.approx([wanted] * 7, abs=2_000)  # ps
    assert wanted - 2 * 10**6 < ends[0] <= wanted


@functools.cache
def mixed(case, fidelity):
    """A step on two hosts with NVLink collectives at closed forms."""
    _, graph, program, how = steps.set_up(case, steps.HOSTS)
    settings = network_settings(
        NetworkSection.model_validate(clusters.find(steps.HOSTS).network | {"fidelity": fidelity})
    )
    return run_program(graph, with_nvlink_closed_forms(graph, program, settings, how), settings, NoProgress())


@pytest.mark.parametrize("case", [name for name in steps.ON_HOSTS if "deepseek" not in name])
@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_steps_take_as_long_as_by_packets(case, fidelity):
    whole = steps.results(case, steps.HOSTS, fidelity)
    assert mixed(case, fidelity).finish_time_ps == pytest.approx(whole.finish_time_ps, rel=0.03)


def test_collectives_between_hosts_stay_packets():
    how = CollectiveSettings({"all-reduce": "nccl"})
    traces = Traces(GRAPH.npus)
    traces.collective(range(16), 0, 1 << 20)
    program = program_of(traces, how)
    assert with_nvlink_closed_forms(GRAPH, program, SETTINGS, how) is program


def two_hosts(how):
    """Both hosts do the same, each in a group of its own."""
    traces = Traces(GRAPH.npus)
    groups = {"host 0": list(range(8)), "host 8": list(HOST)}
    for name, members in groups.items():
        traces.collective(members, 0, 1 << 20, group=name)
    return build_program(traces.tables(), range(16), 16, groups, ComputeModel("trace"), how, fabric=GRAPH)


def with_fault(**fault):
    nvswitch = int(np.flatnonzero(GRAPH.node_kind == NVSWITCH)[0])
    return replace(SETTINGS, faults=Faults(links=(LinkFault(cable(GRAPH, 3, nvswitch), **fault),)))


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ({"at_ps": 0, "rate_bps": 10**11}, r"\[network\] nvlink: .* NPUs \d+ and \d+ have one trace"),
        ({"at_ps": 5, "rate_bps": 10**11}, r"\[\[faults\]\]: npu 3 has NVLinks that fail"),
        ({"at_ps": 0, "error_rate": 0.1}, r"\[\[faults\]\]: npu 3 has NVLinks that fail"),
    ],
)
def test_nvlinks_that_closed_forms_cannot_have_are_refused(fault, problem):
    how = CollectiveSettings({"all-reduce": "ring"})
    with pytest.raises(ConfigError, match=problem):
        with_nvlink_closed_forms(GRAPH, two_hosts(how), with_fault(**fault), how)


def test_slow_nvlinks_of_an_only_host_count():
    how = CollectiveSettings({"all-reduce": "ring"})
    traces = Traces(GRAPH.npus)
    traces.collective(range(8), 0, 1 << 20, group="host")
    program = build_program(
        traces.tables(), range(16), 16, {"host": list(range(8))}, ComputeModel("trace"), how, fabric=GRAPH
    )
    settings = with_fault(at_ps=0, rate_bps=10**11)
    healthy, slow = (
        run_program(GRAPH, with_nvlink_closed_forms(GRAPH, program, each, how), each, NoProgress()).finish_time_ps
        for each in (SETTINGS, settings)
    )
    assert slow == pytest.approx(run_program(GRAPH, program, settings, NoProgress()).finish_time_ps, rel=0.02)
    assert slow > 5 * healthy


@pytest.mark.busy
def test_digest_is_one_for_any_workers():
    run = {
        "workload": {"model": "gpt3-125m", "plan": "tp4,pp2,dp2,gb4,sp"},
        "topology": {"cluster": "dgx-h100-superpod", "gpus": 16},
        "network": {"nvlink": "closed-form"},
    }
    digests = {
        nadi.simulate({**run, "engine": {"workers": workers, "backend": backend}}).summary["digest"]
        for workers, backend in ((1, "threads"), (2, "threads"), (2, "processes"))
    }
    assert len(digests) == 1

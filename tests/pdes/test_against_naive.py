import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from pdes import Settings
from tests.pdes import naive
from tests.pdes.cases import BASE, Traces, runs
from tests.pdes.compare import by_hand, check, differences, simulate
from topologies import build

bounded = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def agree(case):
    spec, workload, chosen = case
    graph = build(spec)
    check(graph, workload.program(graph.npus), chosen)


@bounded
@given(runs(lossy=False))
def test_random_runs_agree_without_losses(case):
    agree(case)


@bounded
@given(runs(lossy=True))
def test_random_runs_agree_with_losses(case):
    agree(case)

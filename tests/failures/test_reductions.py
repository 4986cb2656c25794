"""Failures of links and switches beside reductions in switches, whose aggregators are endpoints of the fabric, too."""

import pytest

import nadi
from nadi import et
from nadi.pdes import RunError

SUM = et.CollectiveCommType.ALL_REDUCE
MIB = 1 << 20
CABLE = {"link": "npu 0 - leaf 0", "state": "down"}
BACK = {"at": "400us", "until": "900us"}


def traces():
    """Two all-reduces inside hosts of eight GPUs, then one between the hosts, for each of 16 GPUs."""
    for npu in range(16):
        nodes = [
            et.coll_node(1, "inside", SUM, 8 * MIB, pg_name="tp" + str(npu // 8)),
            et.coll_node(2, "inside again", SUM, 8 * MIB, deps=[1], pg_name="tp" + str(npu // 8)),
            et.coll_node(3, "between", SUM, 32 * MIB, deps=[2], pg_name="dp" + str(npu % 8)),
            et.coll_node(4, "at the end", SUM, 8 * MIB, deps=[3], pg_name="tp" + str(npu // 8)),
        ]
        yield et.table_of(et.metadata(), nodes)


def ran(fidelity="packet", faults=(), **network):
    tp = {f"tp{host}": list(range(8 * host, 8 * host + 8)) for host in range(2)}
    dp = {f"dp{rail}": [rail, rail + 8] for rail in range(8)}
    return nadi.simulate(
        topology={"cluster": "dgx-h100-superpod", "gpus": 16},
        workload=list(traces()),
        groups=tp | dp,
        network={"fidelity": fidelity, "detection_time": "50us", **network},
        faults=list(faults),
    )


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_cable_that_comes_back_costs_the_time_it_was_down(fidelity):
    """It is down from 0.4 to 0.9 ms in an exchange of 0.7 ms; what NVSwitches reduce before is as fast as ever."""
    whole, failed = ran(fidelity), ran(fidelity, [CABLE | BACK])
    assert 400 < (failed.finish_time_ps - whole.finish_time_ps) / 1e6 < 2000
    inside = [[float(row["finish_ps"]) for row in run.collectives.to_pylist()[:2]] for run in (whole, failed)]
    assert inside[0] == inside[1]


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_gpu_without_its_nic_says_so(fidelity):
    with pytest.raises(RunError, match=r"npu (0|8) has no path to npu (0|8) since leaf 0 went down at 0.1 ms"):
        ran(fidelity, [{"at": "100us", "switch": "leaf 0", "state": "down"}], rto="50us")


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_a_gpu_without_the_switch_that_reduces_says_so(fidelity):
    with pytest.raises(RunError, match=r"no path to the reduction in nvswitch 1 since nvswitch 1 went down at 0.01 ms"):
        ran(fidelity, [{"at": "10us", "switch": "nvswitch 1", "state": "down"}], rto="50us")

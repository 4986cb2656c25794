"""Data classes of switches with shared buffers in closed form: priority, weights, pauses and marks of each class."""

import numpy as np
import pytest

from nadi import et, pdes
from nadi.configuration.run_file import load_config
from nadi.errors import ConfigError
from nadi.pdes.network.disciplines import discipline
from tests.fabric import scenarios as sc
from tests.fabric.cases import Network, star
from tests.fabric.test_tiers import sections
from tests.nonempty import nonempty
from tests.running import simulate

FULL = sc.MTU + sc.HEADER
PACKET_PS = FULL * 80  # at 100 Gb/s
PACKETS = 600


def to_one(classes, *, packets=PACKETS, **switch):
    """NPUs that each send packets of one class to the last NPU; return results and (end in ps, sender) of packets."""
    senders = len(classes)
    sent = sc.streams(np.arange(senders), senders, sc.MTU, packets)
    buffer = pdes.SharedBuffer(**({"buffer_bytes": 1 << 28, "pfc_alpha": 8.0, "ecn": False} | switch))
    own = {"p2p_classes": np.array([*classes, 0]), "named_classes": tuple(sorted(set(classes)))}
    results, _ = sc.simulate(star(senders + 1).graph(), sent, switch=buffer, window_bytes=1 << 24, **own)
    order = np.argsort(results.flows["finish_ps"], kind="stable")
    return results, results.flows["finish_ps"][order], results.flows["src"][order]


@pytest.mark.parametrize(
    ("name", "weights", "first"), [("strict", (), 0), ("ets", (0,) * 8, 1), ("ets", (1, 1, 1, 1, 1, 1, 0), 1)]
)
def test_a_strict_class_starves_the_other_exactly(name, weights, first):
    # classes 3 and 6: "strict" sends the lower number first, "ets" the higher. The other class has at most the packet
    # that began, and those that came, before the first of the preferred class
    _, _, sender = to_one([3, 6], discipline=discipline(name), class_weights=weights)
    at = np.flatnonzero(sender == first)
    assert np.array_equal(at[1:], np.arange(at[1], at[1] + PACKETS - 1))
    assert at[1] <= 2


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (1, 4), (5, 2)])
@pytest.mark.parametrize("name", ["weighted", "ets"])
def test_bytes_of_classes_are_as_their_weights(name, weights):
    of_classes = np.ones(8, int)
    of_classes[[2, 5]] = weights
    _, _, sender = to_one([2, 5], discipline=discipline(name), class_weights=tuple(of_classes.tolist()))
    both = np.cumsum(sender == 0), np.cumsum(sender == 1)
    # until one class has nothing left; at any moment a class is off its share by no more than its turn of full packets
    until = np.flatnonzero((both[0] == PACKETS) | (both[1] == PACKETS))[0]
    share = weights[0] / sum(weights)
    off = both[0][2:until] - share * np.arange(3, until + 1)
    assert until > PACKETS
    assert np.abs(off).max() <= max(weights) + 1


def test_deficits_count_bytes_and_not_packets():
    # packets of 4178 and of 1078 bytes at equal weights: four small ones for each large one, within one large packet
    sent = [sc.streams(0, 2, 4096, 200), sc.streams(1, 2, 996, 800)]
    sent = sc.Messages(*(np.concatenate(columns) for columns in zip(*sent, strict=True)))
    switch = pdes.SharedBuffer(buffer_bytes=1 << 28, pfc_alpha=8.0, ecn=False, discipline=discipline("ets"))
    own = {"p2p_classes": np.array([1, 4, 0]), "named_classes": (1, 4)}
    results, _ = sc.simulate(star(3).graph(), sent, switch=switch, window_bytes=1 << 24, **own)
    order = np.argsort(results.flows["finish_ps"], kind="stable")
    sizes = results.flows["bytes"][order] + sc.HEADER
    of_first = results.flows["src"][order] == 0
    ahead = np.cumsum(np.where(of_first, sizes, -sizes))[10:390]
    assert np.abs(ahead).max() <= 2 * FULL + 1078


# NPU 0 sends to NPU 2, whose port is slow; NPU 1 sends to NPU 3 over the same cable between the switches
TWO = Network(4, (0, 0), ((0, 4, 100, 0), (1, 4, 100, 0), (2, 5, 10, 0), (3, 5, 100, 0), (4, 5, 400, 0)))


@pytest.mark.parametrize(("other", "is_held"), [(3, True), (5, False)])
def test_a_pause_of_one_class_does_not_hold_another(other, is_held):
    sent = sc.messages([0, 1], [2, 3], 8 << 20)
    switch = pdes.SharedBuffer(buffer_bytes=600_000, pfc_alpha=0.5, ecn=False)
    own = {"p2p_classes": np.array([3, other, 0, 0]), "named_classes": tuple(sorted({3, other}))}
    chosen = {"window_bytes": 1 << 24, "logged_pauses": 1000, **own}
    results, sim = sc.simulate(TWO.graph(), sent, switch=switch, **chosen)
    sc.check_lossless(results, sim)
    assert set(nonempty(results.pauses["data_class"].tolist())) == {3}
    took_ps = dict(zip(results.flows["src"].tolist(), results.flows["finish_ps"].tolist(), strict=True))
    alone_ps = (8 << 20) / sc.MTU * PACKET_PS
    assert took_ps[0] == pytest.approx(10 * alone_ps, rel=0.01)
    assert (took_ps[1] > 3 * alone_ps) == is_held
    assert is_held or took_ps[1] == pytest.approx(alone_ps, rel=0.01)


def test_only_classes_that_pause_are_lossless():
    chosen = {"buffer_bytes": 400_000, "pfc_alpha": 0.5, "ecn": False, "pfc_classes": (3,)}
    sent = sc.messages([0, 1, 2], 3, 1 << 20)
    for of_npus, drops in (((3, 3, 3), False), ((4, 4, 4), True)):
        own = {"p2p_classes": np.array([*of_npus, 0]), "named_classes": (3, 4)}
        results, _ = sc.simulate(
            star(4).graph(),
            sent,
            switch=pdes.SharedBuffer(**chosen),
            selective_repeat=True,
            window_bytes=1 << 20,
            **own,
        )
        assert (results.counters["dropped_packets"] > 0) == drops
        assert (results.counters["pause_frames"] > 0) != drops


def test_thresholds_of_one_class_mark_no_other():
    # class 6 is marked from the first packet that waits; class 1 has the thresholds of all, which are never reached
    marks = {"ecn": True, "ecn_kmin_bytes": 10**9, "ecn_kmax_bytes": 10**9, "ecn_by_class": ((6, 0, 0, 1.0),)}
    for classes, share in (((1, 1), 0.0), ((6, 6), 1.0)):
        results, _, _ = to_one(classes, **marks)
        assert results.counters["marked_packets"] == pytest.approx(share * 2 * PACKETS, abs=3)


# Run files


def of_run(folder, **network):
    nodes = [et.coll_node(1, "a", et.CollectiveCommType.ALL_REDUCE, 1 << 18)]
    et.write_trace(folder / "trace.et", et.metadata(), nodes)
    jobs = [{"name": name, "traces": str(folder / "trace.et"), "gpus": 8} for name in ("train", "serve")]
    whole = {key: value for key, value in sections(folder, **network).items() if key != "workload"}
    return simulate(load_config(None, sections=whole | {"jobs": jobs}))


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ({"*": 3}, (3, 3)),
        ({"train": 5, "*": 2}, (5, 2)),
        ({"serve/all": 6, "serve": 5}, (0, 6)),
        ({"all": 4, "train": 1}, (1, 4)),
        ({"all-to-all": 3, "all-gather": 2}, (3, 3)),
        ({"all-to-all": 3, "all": 2, "train": 1}, (1, 2)),
        ({"serve/all-to-all": 5, "all-to-all": 3, "*": 1}, (3, 5)),
    ],
)
def test_traffic_has_the_class_of_its_most_specific_name(classes, expected, tmp_path):
    found = of_run(tmp_path, classes=classes)
    groups = found.program.jobs.of_groups()
    of_groups = found.settings.group_classes
    assert tuple({int(each) for each in of_groups[groups == job]} for job in (0, 1)) == tuple({n} for n in expected)
    assert set(expected) <= set(found.settings.data_classes)


def test_switches_that_reduce_have_the_class_of_the_collective(tmp_path):
    """Aggregators are NPUs of the engine that [network] classes do not know, and send no messages of their own."""
    et.write_trace(
        tmp_path / "trace.et", et.metadata(), [et.coll_node(1, "a", et.CollectiveCommType.ALL_REDUCE, 1 << 20)]
    )
    given = {"workload": {"traces": str(tmp_path / "trace.et")}, "topology": {"spec": "dgx-h100-superpod:gpus=8"}}
    given["system"] = {"collectives": {"all-reduce": "nvls"}}
    ends = {
        simulate(load_config(None, sections=given | {"network": network})).results.finish_time_ps
        for network in ({"switch": "shared-buffer"}, {"classes": {"all": 1}})
    }
    assert len(ends) == 1


def test_kinds_of_one_group_have_one_class(tmp_path):
    """A queue pair keeps its class, and carries all collectives of its group."""
    kinds = et.CollectiveCommType.ALL_REDUCE, et.CollectiveCommType.ALL_GATHER
    nodes = [et.coll_node(number, "c", kind, 1 << 14) for number, kind in enumerate(kinds, 1)]
    et.write_trace(tmp_path / "both.et", et.metadata(), nodes)

    def classes_of(**classes):
        found = sections(tmp_path, classes={key.replace("_", "-"): number for key, number in classes.items()})
        found["workload"] = {"traces": str(tmp_path / "both.et")}
        return set(simulate(load_config(None, sections=found)).settings.group_classes.tolist())

    assert classes_of(all_reduce=3, all_gather=3) == classes_of(all_reduce=1, all=3) == {3}
    with pytest.raises(ConfigError) as error:
        classes_of(all_reduce=3)
    expected = 'found 0 of all-gather and 3 of all-reduce in the group "all"; expected one class of a group'
    assert str(error.value) == f"[network] classes: {expected}"


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        ({"classes": {"nobody": 1}}, r'\[network\] classes: found "nobody"; expected some of p2p, all, '),
        ({"classes": {"p2p": 8}}, "less than or equal to 7"),
        ({"classes": {"p2p": 2}, "switch": "credits", "virtual_lanes": 2}, "p2p = 2 with 2 classes or lanes"),
        ({"p2p_class": 1, "class_weights": [1, 0], "discipline": "weighted"}, 'expected discipline = "ets"'),
        ({"ecn_by_class": {"8": ["1kB", "2kB", 1.0]}}, "found class '8'; expected 0 to 7"),
        ({"ecn_by_class": {"3": ["3kB", "2kB", 1.0]}}, "class 3: found kmin 3kB above kmax 2kB"),
    ],
)
def test_what_is_wrong_is_one_line(network, complaint, tmp_path):
    with pytest.raises((ConfigError, ValueError), match=complaint) as error:
        simulate(load_config(None, sections=sections(tmp_path, **network)))
    assert "\n" not in str(error.value)

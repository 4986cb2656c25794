"""Entropy rules beside their models in plain Python, choice by choice."""

import ctypes

import pytest
from hypothesis import given, strategies as st

from nadi.pdes import Settings, build_world
from nadi.pdes.core import packet, state as s
from nadi.pdes.core.jit import call_hook, jit_enabled
from nadi.pdes.nic.entropy import denied_of, entropy_rule
from nadi.topologies import build
from tests.budgets import bounded
from tests.fabric import naive_entropy as naive
from tests.pdes.cases import Traces

PATHS, PLANES, SPINES, PAIR, SALT = 32, 4, 4, 2, 77
FIRST, STEP = 901, 4711
EVENTS = {
    naive.GOOD: s.PATH_GOOD,
    naive.MARKED: s.PATH_MARKED,
    naive.TRIMMED: s.PATH_TRIMMED,
    naive.DROPPED: s.PATH_DROPPED,
    naive.TIMED_OUT: s.PATH_TIMED_OUT,
}
MS = 10**9
step = st.fixed_dictionaries(
    {
        "sent": st.integers(0, 40),
        "again": st.booleans(),
        "after_ps": st.sampled_from([0, 10**5, 10**6, MS, 3 * MS, 11 * MS]),
        "heard": st.lists(st.tuples(st.integers(0, 39), st.sampled_from(list(EVENTS))), max_size=12),
    }
)


def called(hook, *arguments):
    """Return what a compiled hook returns."""
    if not jit_enabled():
        return call_hook(hook, *arguments)
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(hook)(*arguments)


class Rule:
    """The compiled hook of an entropy rule, for one queue pair of a world."""

    def __init__(self, name, denied):
        traces = Traces(8)
        traces.message(0, 5, 1000)
        graph = build(f"multi-plane:npus=8,planes={PLANES},nics_per_leaf=4,spines={SPINES}")
        settings = Settings(entropy=entropy_rule(name), paths=PATHS, nic_ports="all", denied_paths=denied)
        (self.lp,) = build_world(graph, traces.program(), settings).lps
        row = self.lp.world.qps.paths[PAIR]
        row.first, row.step, row.salt = FIRST, STEP, SALT

    def __call__(self, operation, path=0, now_ps=0):
        return called(int(self.lp.world.net.hooks.entropy), self.lp.address, operation, PAIR, path, now_ps)


def paths_denied(names):
    """Paths of the queue pair whose entropies name a plane or spine that is denied, or that are denied themselves."""
    found = set()
    for plane, spine, path in denied_of(names):
        for number in range(PATHS):
            value = (FIRST + number * STEP) % 2**15
            named = plane in (-1, value % PLANES) and spine in (-1, value // 8 % SPINES)
            if number == path if path >= 0 else named:
                found.add(number)
    return found


@bounded(60)
@given(
    st.sampled_from(sorted(naive.RULES)),
    st.sampled_from([(), ("plane 1",), ("spine 2", "path 7"), ("plane 0 spine 1", "plane 3 spine 0")]),
    st.lists(step, max_size=25),
)
def test_every_choice_is_that_of_the_model(name, denied, steps):
    rule = Rule(name, denied)
    own = {"denied": paths_denied(denied)} if name == "mrc" else {}
    model = naive.RULES[name](PATHS, SALT, **own)
    now_ps, sent = 0, []
    for told in steps:
        for _ in range(told["sent"]):
            again = told["again"] and name == "mrc"
            chosen = rule(s.PATH_CHOOSE, int(again), now_ps)
            assert chosen == model.choose(again)
            sent.append(chosen)
        if name == "mrc":
            assert rule(s.PATH_PROBE, 0, now_ps) == model.probe(now_ps)
        now_ps += told["after_ps"]
        # each packet is heard of once, so that queues of good paths hold no more than what was sent
        for place, what in told["heard"]:
            if sent:
                path = sent.pop(place % len(sent))
                rule(EVENTS[what], path, now_ps)
                model.learn(path, what, now_ps)


@pytest.mark.parametrize("name", sorted(naive.RULES))
def test_all_paths_have_turns_while_nothing_happens(name):
    model = naive.RULES[name](PATHS, SALT)
    assert len({model.choose() for _ in range(PATHS * 8)}) == PATHS


def test_flows_with_equal_entropies_do_not_share_links():
    """Switches hash both ends with the entropy: at one with 64 links, 64 senders take as many as random ones do."""
    lp = Rule("oblivious", ()).lp
    hook, switch = int(lp.world.net.hooks.balancing), 8
    word2 = packet.with_entropy(0, FIRST)
    words = [packet.header(1, src, 4178, 0) for src in range(64)]
    links = {called(hook, lp.address, switch, 0, 64, word1, word2, 0) for word1 in words}
    # 64 x (1 - (63/64)^64) = 40.6 are expected, with a standard deviation of 2.4
    assert 33 <= len(links) <= 48
    assert max(links) < 64
    # flags and size do not count: a trimmed packet takes the same link
    assert called(hook, lp.address, switch, 0, 64, packet.header(1, 5, 64, packet.FLAG_TRIMMED), word2, 0) == called(
        hook, lp.address, switch, 0, 64, words[5], word2, 0
    )

"""Packets that are trimmed again and again: a queue pair gives up where the first unacknowledged one never comes."""

import pytest

from nadi.pdes import RunError, build_world, run
from nadi.pdes.outcomes.outcome import settled
from tests.fabric.cases import Flows, Scenario, star
from tests.fabric.compare import by_hand, check, owners
from tests.pdes.naive import GaveUpError

CHOSEN = {"mtu_bytes": 918, "seed": 1, "max_retries": 60, "window_bytes": 9000, "rto_ps": 30_000_000}
INCAST = Flows(tuple((src, 0, 20_000, 0) for src in range(1, 7)))
# room for one packet: of the three senders one is always too late, as its next window comes with that of the others
FOR_EVER = Scenario(
    star(4),
    Flows(tuple((src, 0, 80_000, 0) for src in range(1, 4))),
    {"pfc": False, "trimming": True, "pfc_alpha": 4.0, "buffer_bytes": 1298},
    {"mtu_bytes": 1000, "seed": 1, "window_bytes": 16_000, "rto_ps": 30_000_000, "max_resends": 300},
)


def incast(selective, **chosen):
    """Six senders and room for two packets: all comes in the end, after many trims."""
    switch = {"pfc": False, "trimming": True, "pfc_alpha": 8.0, "buffer_bytes": 2000}
    return Scenario(star(7, delay=100_000), INCAST, switch, CHOSEN | {"selective_repeat": selective} | chosen)


@pytest.mark.parametrize("selective", [False, True])
def test_a_queue_pair_gives_up_after_exactly_as_many_trims_as_are_allowed(selective):
    found = check(*incast(selective).build())
    pairs = [pair for npu in found.reference.npus for pair in npu.pairs.values()]
    most = max(max(pair.resends.values(), default=0) for pair in pairs)
    assert most > 5
    assert check(*incast(selective, max_resends=most).build(), lps=3) is not None
    assert check(*incast(selective, max_resends=most - 1).build()) is None


@pytest.mark.parametrize("lps", [1, 3])
def test_a_run_whose_trims_never_end_names_queue_pair_port_and_remedy(lps):
    graph, program, chosen = FOR_EVER.build()
    sim = build_world(graph, program, chosen, owners(graph, lps, 1))
    known = settled(sim)
    with pytest.raises(
        RunError,
        match=r"^npu [1-3] to npu 0: packet \d+ unacknowledged after it was trimmed and sent again 30[1-9] times "
        r"\(at \d+ ps\); the port s0 -> npu 0 has trimmed [\d,]+ packets; expected a larger buffer, ",
    ):
        run(sim)
    with pytest.raises(GaveUpError, match=r"npu [1-3] to npu 0"):
        by_hand(graph, program, chosen, known)

"""What is said of a run under way."""

import io
from types import SimpleNamespace

from nadi.launching.progress import NoProgress, describe, progress


def snapshot(**more):
    values = {"now_ps": 3_500_123, "packet_hops": 24_000_000, "nodes_done": 30, "nodes_total": 120, "wall_s": 2.0}
    return SimpleNamespace(**values | {"messages": None, "stopped_replaying": False} | more)


def test_a_line():
    begun = "3.5us simulated, 12.0 M packet-hops/s, "
    assert describe(snapshot(), 96e6) == begun + "25.0% of 9.6e+07 packet-hops done, 6 s left"
    assert describe(snapshot(messages=30), 40) == begun + "75.0% of 40 messages done, 1 s left"
    assert describe(snapshot(), 0) == begun + "30 of 120 trace nodes done"


def test_a_run_that_continues_is_as_fast_as_it_is_now():
    """What was done before its first report does not count for the pace."""
    first = snapshot(packet_hops=80_000_000, wall_s=0.5)
    assert "12.0 M packet-hops/s, 40.0% of 2.6e+08 packet-hops done, 13 s left" in describe(
        snapshot(packet_hops=104_000_000, wall_s=2.5), 260e6, first
    )


def test_nothing_is_promised_before_something_is_done():
    assert describe(snapshot(packet_hops=0), 10).endswith("0.0% of 10 packet-hops done")
    assert describe(snapshot(packet_hops=1, wall_s=100.0), 120).endswith("3 h 18 min left")
    assert describe(snapshot(packet_hops=60, wall_s=100.0), 120).endswith("1 min 40 s left")
    assert describe(snapshot(packet_hops=1, wall_s=100.0), 300).endswith("0.3% of 300 packet-hops done")


def test_nothing_is_promised_where_packets_were_sent_again():
    assert describe(snapshot(packet_hops=130), 120).endswith(
        "30 of 120 trace nodes done, 1.08 times the expected packet-hops"
    )
    assert describe(snapshot(packet_hops=120), 120).endswith("30 of 120 trace nodes done")
    assert "99.9% of 1e+05 packet-hops done" in describe(snapshot(packet_hops=99_999), 100_000)


def test_a_file_gets_a_line_every_few_seconds(monkeypatch):
    now = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.expect(96e6)
        for _ in range(3):
            shown(snapshot())
        shown.say("compiling")
    assert stream.getvalue() == f"nadi: {describe(snapshot(), 96e6)}\nnadi: compiling\n"


def test_a_run_that_stops_to_replay_says_so_once_and_expects_more(monkeypatch):
    now = iter(range(0, 100, 6))
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream, stopped = io.StringIO(), snapshot(stopped_replaying=True)
    with progress(stream=stream) as shown:
        shown.expect(96e6, 144e6, "seldom repeats")
        for each in (snapshot(), stopped, stopped):
            shown(each)
    more = f"nadi: {describe(stopped, 240e6)}\n"
    assert stream.getvalue() == f"nadi: {describe(snapshot(), 96e6)}\nnadi: seldom repeats\n{more}{more}"


def test_of_several_runs_each_line_says_which(monkeypatch):
    now = iter([0.0, 1.0, 6.0, 6.0, 12.0, 12.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.begin("row 1 of 2")
        shown.begin("row 2 of 2")
        shown(snapshot())
    assert stream.getvalue() == f"nadi: row 2 of 2\nnadi: row 2 of 2: {describe(snapshot(), 0)}\n"


def test_things_done_with_the_time_that_remains(monkeypatch):
    now = iter([0.0, 60.0, 60.0, 60.0])
    monkeypatch.setattr("nadi.launching.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.count(2, 6, "points")
    assert stream.getvalue() == "nadi: 2 of 6 points done, 2 min 0 s left\n"


def test_a_terminal_gets_one_live_line():
    stream = io.StringIO()
    stream.isatty = lambda: True
    with progress(stream=stream) as shown:
        shown(snapshot())
        shown.say("compiling")
    assert "compiling" in stream.getvalue()


def test_quiet():
    with progress(quiet=True) as shown:
        assert isinstance(shown, NoProgress)
        shown.begin("row 1 of 2")
        shown.expect(1.0)
        shown(snapshot())
        shown.say("x")

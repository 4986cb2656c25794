"""An exception on one worker ends all of them within seconds, says what and where it was, and leaves no results."""

import pytest

STARTS_S = 20
ENDS_S = 10

CASES = [
    # way, who has the fault, where, what stands before it
    ("serial", "everyone", "windows", ""),
    ("serial", "everyone", "writing", ""),
    ("threads", "thread 1", "starting", ""),
    ("processes", "worker 1", "building", "worker 1: "),
    ("processes", "worker 1", "windows", "worker 1: "),
    ("ranks", "rank 1", "reading", "rank 1: "),
    ("ranks", "rank 1", "windows", "rank 1: "),
    ("ranks", "rank 1", "collecting", "rank 1: "),
    ("ranks", "rank 0", "writing", "rank 0: "),
    ("ranks", "rank 1", "writing", "rank 1: "),
    ("ranks of two nodes", "rank 1", "windows", "rank 1: "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "who", "where", "named"), CASES)
def test_an_exception_ends_all(start, endless, short, tmp_path, way, who, where, named):
    file = endless if where in {"windows", "starting"} else short
    run = start(way, file, "--out", tmp_path / "out", fault=f"{where}@{who}")
    assert run.ended(within_s=STARTS_S + ENDS_S) == 1
    (line,) = run.told()
    assert line.startswith(f"nadi: error: {named}InjectedError: boom")
    assert [*tmp_path.glob("out/*")] == []

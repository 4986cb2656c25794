"""What a first worker takes to look at the others' lines is measured on lines that the others have written."""

from nadi.studies.benchmarks.instruments import meeting_costs


def test_the_more_workers_the_longer_the_first_looks(monkeypatch):
    monkeypatch.setattr(meeting_costs, "ROUNDS", 100)
    alone_ns, all_ns = (min(meeting_costs._settle_ns(workers) for _ in range(5)) for workers in (1, 2000))
    assert 0 <= alone_ns < all_ns

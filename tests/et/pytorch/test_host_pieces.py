from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nadi.et.pytorch.rank_nodes import NO_OWNER, HostSpan, pieces

END = 40


def naive(spans):
    """By moment the owner: of the spans that are open the one that began last, of these the last one listed."""
    found = []
    for now in range(END):
        open_now = [span for span in spans if span.start_ns <= now < span.end_ns]
        found.append(max(open_now, key=lambda span: (span.start_ns, span.owner)).owner if open_now else NO_OWNER)
    return found


@given(st.lists(st.tuples(st.integers(0, END - 1), st.integers(0, END)), max_size=8))
def test_every_moment_belongs_to_what_began_last(drawn):
    spans = [HostSpan(start, min(start + length, END), owner) for owner, (start, length) in enumerate(drawn)]
    made = pieces(spans, 0, END)
    assert [piece.owner for piece in made for _ in range(piece.start_ns, piece.end_ns)] == naive(spans)
    assert all(before.end_ns == after.start_ns for before, after in pairwise(made))
    first = [piece.owner for piece in made if piece.is_first and piece.owner != NO_OWNER]
    assert sorted(first) == list(range(len(spans)))

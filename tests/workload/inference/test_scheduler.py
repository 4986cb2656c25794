"""Iterations: every token once, limits kept, and the order of vLLM and Sarathi."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadi.workload.errors import WorkloadError
from nadi.workload.generators.inference.requests import Lengths, Request, RequestStream, requests_of
from nadi.workload.generators.inference.scheduler import Batch, BatchLimits, Prompts, Role, schedule
from tests.budgets import bounded

_LIMITS = BatchLimits(sequences=4, cached_tokens=0, prompt_tokens=100, chunk=0, lanes=1, stages=1)


def of(requests, limits=_LIMITS, role=Role()):  # noqa: B008 - it is immutable
    """Batches of one replica, where each iteration takes 1 us."""
    return [each.batch for each in schedule([requests], limits, role, lambda _: 1.0).iterations[0]]


def test_prompts_go_first_and_whole():
    requests = [Request(number, 0, 60, 3) for number in range(3)]
    assert of(requests) == [
        Batch((Prompts(1, 60, 0),), 0, 0, 1),  # two are beyond 100 tokens
        Batch((Prompts(1, 60, 0),), 0, 0, 1),
        Batch((Prompts(1, 60, 0),), 0, 0, 1),
        Batch((), 3, 61, 3),
        Batch((), 3, 62, 3),
    ]


def test_pieces_of_prompts_fill_what_decoding_leaves():
    requests = [Request(0, 0, 10, 3), Request(1, 0, 25, 2)]
    assert of(requests, _LIMITS._replace(chunk=16)) == [
        Batch((Prompts(1, 10, 0), Prompts(1, 6, 0)), 0, 0, 1),
        Batch((Prompts(1, 15, 6),), 1, 11, 1),
        Batch((Prompts(1, 4, 21),), 1, 12, 2),
        Batch((), 1, 26, 1),
    ]


def test_a_request_waits_for_its_arrival_and_for_the_cache():
    late = [Request(0, 0, 10, 3), Request(1, 50, 10, 2)]
    assert [batch.tokens for batch in of(late)] == [10, 1, 1, 10, 1]
    both = [Request(0, 0, 10, 3), Request(1, 0, 10, 2)]
    assert [batch.tokens for batch in of(both, _LIMITS._replace(cached_tokens=20))] == [10, 1, 1, 10, 1]


def test_replicas_that_keep_step_have_as_many_iterations():
    found = schedule([[Request(0, 0, 10, 3)], []], _LIMITS, Role(), lambda _: 1.0).iterations
    assert [[each.batch.tokens for each in own] for own in found] == [[10, 1, 1], [0, 0, 0]]


@bounded(40)
@given(st.data())
def test_every_token_is_made_once(data):
    draw = data.draw
    count, lanes = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    lengths = Lengths("uniform", 1, 30), Lengths("uniform", 1, 8)
    requests = requests_of(
        RequestStream(count, *lengths, rate=draw(st.sampled_from([0.0, 2e5])), seed=draw(st.integers(0, 99)))
    )
    role = draw(st.sampled_from([Role(), Role(decodes=False), Role(prefills=False)]))
    if not role.prefills:
        requests = [each for each in requests if each.generate > 1]
    limits = BatchLimits(
        draw(st.integers(1, 5)), draw(st.sampled_from([0, 38, 60])), 40, draw(st.sampled_from([0, 8])), lanes, 2
    )
    found = schedule([requests], limits, role, lambda batch: 0.1 * batch.tokens).iterations[0]
    prompts = sum(each.prompt for each in requests) if role.prefills else 0
    answers = sum(each.generate - 1 for each in requests) if role.decodes else 0
    assert sum(each.batch.prompt_tokens for each in found) == prompts
    assert sum(each.batch.decodes for each in found) == answers
    assert [each.number for each in found] == list(range(len(found)))
    assert all(each.batch.decodes <= limits.sequences for each in found)
    joined = sorted(request.number for each in found for request in each.joined)
    assert joined == sorted(each.number for each in requests)
    if limits.chunk and role.prefills:
        assert all(each.batch.tokens <= limits.chunk for each in found)


def test_lengths_and_arrivals_are_drawn_from_the_seed():
    drawn = RequestStream(4000, Lengths.parse("lognormal:500,0.5", "p"), Lengths.parse("uniform:5-9", "g"), rate=10.0)
    requests = requests_of(drawn)
    assert requests == requests_of(drawn) != requests_of(dataclasses.replace(drawn, seed=2))
    assert sorted(each.prompt for each in requests)[2000] == pytest.approx(500, rel=0.05)
    assert {each.generate for each in requests} == {5, 6, 7, 8, 9}
    assert requests[-1].arrival_us == pytest.approx(400e6, rel=0.05)


@pytest.mark.parametrize(
    "text", ["0", "-3", "many", "uniform:9-3", "lognormal:0,1", "lognormal:5,99", "lognormal:5,.", "1e3"]
)
def test_lengths_that_are_none_are_one_line(text):
    with pytest.raises(WorkloadError, match=r"^prompt: .*expected"):
        Lengths.parse(text, "prompt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b,c\n",
        "arrival_s,prompt,generate\n",
        "arrival_s,prompt,generate\n0,5\n",
        "arrival_s,prompt,generate\n0,0,1\n",
        "arrival_s,prompt,generate\nnan,1,1\n",
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path, text):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match="expected") as error:
        requests_of(path)
    assert "\n" not in str(error.value)


def test_a_file_of_requests(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,generate\n1.5,7,3\n0.25,9,4\n")
    assert requests_of(path) == (Request(0, 250_000, 9, 4), Request(1, 1_500_000, 7, 3))

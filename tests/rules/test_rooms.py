"""Budgets of rooms: lines of code are counted, growth is found, and so is a budget that has become too large."""

from tests.rules.rooms import BUDGETS, ROOT, budgets, check, lines_of_code, lowered, room_of, sources

SOURCE = '''"""A docstring
of two lines."""

import os  # a comment beside code


class Row:
    """One line."""

    word: int = 0
    """The docstring of a field."""
    text = """of
two lines"""


# a comment
def f(a,
      b):
    return (a +

            b)
'''
ROOMS = {"pdes": {"lines": 300}, "pdes/nic": {"lines": 1010}}


def said(lines_by_file):
    return [(finding.room, finding.what.partition(":")[0]) for finding in check(lines_by_file, ROOMS)]


def test_what_explains_is_no_line_of_code():
    assert lines_of_code(SOURCE) == 9


def test_a_file_belongs_to_the_innermost_room():
    assert room_of("pdes/nic/congestion/dctcp.py", ROOMS) == "pdes/nic"
    assert room_of("pdes/window.py", ROOMS) == "pdes"
    assert room_of("setup.py", ROOMS) is None


def test_growth_and_room_to_grow_are_found():
    fits = {"pdes/window.py": 296, "pdes/nic/port.py": 500, "pdes/nic/congestion/dctcp.py": 501}
    assert said(fits) == []
    assert said(fits | {"pdes/nic/pacing.py": 10}) == [("pdes/nic", "1,011 lines of code, budget 1,010")]
    assert said(fits | {"pdes/window.py": 294}) == [("pdes", "294 lines of code, budget 300")]
    assert said(fits | {"et/reader.py": 3})[0][0] == "et/reader.py"


def test_budgets_are_lowered_and_never_raised():
    text = '# "a" = { lines = 7\n"pdes" = { lines = 300, reason = "x" }\n"et" = { lines = 20, reason = "y" }\n'
    assert lowered(text, {"pdes": 200, "et": 30}) == text.replace("300", "200")
    assert lowered(BUDGETS.read_text(), {room: budget["lines"] for room, budget in budgets().items()}) == (
        BUDGETS.read_text()
    )


def test_each_room_is_a_folder_with_a_reason_and_has_files():
    rooms, files = budgets(), sources()
    assert len(rooms) > 50
    assert {room_of(path, rooms) for path in files} == rooms.keys()
    assert all(budget.keys() == {"lines", "reason"} and budget["reason"] for budget in rooms.values())
    assert all((ROOT / room).is_dir() for room in rooms)

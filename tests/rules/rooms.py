"""Budgets of lines: a room has no more lines of code than rooms.toml grants it, and the file grants little more.

python -m tests.rules.rooms prints each finding on a line, with exit code 1 if there is any. With --lower it first
lowers budgets to the lines that rooms have. Only people raise budgets.

A line of code is one that has more than a comment or a docstring: what explains costs nothing. Tests have no budget.
"""

import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("rooms.toml")
SLACK = 0.01
"""Share of a room's lines by which its budget may exceed them."""
LEAST_SLACK = 5
"""Lines by which the budget of a small room may exceed its lines."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_LINES = re.compile(r'^(?P<begin>"(?P<room>[^"]+)" = \{ lines = )(?P<lines>\d+)', re.MULTILINE)


class Finding(NamedTuple):
    """A room whose budget is too small, too large, or missing."""

    room: str
    what: str

    def __str__(self):
        return f"{BUDGETS.relative_to(ROOT)}: {self.room}: {self.what}"


def lines_of_code(text):
    """Return the number of lines of a Python source that have code: neither blank, nor comment, nor docstring."""
    lines, statement = set(), []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            statement.append(token)
        if token.type in {tokenize.NEWLINE, tokenize.ENDMARKER}:
            if {part.type for part in statement} != {tokenize.STRING}:
                lines.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
            statement = []
    return len(lines)


def sources():
    folders = [folder for folder in ROOT.iterdir() if folder.is_dir() and folder.name not in {"tests", "build", "site"}]
    paths = [path for folder in folders if not folder.name.startswith(".") for path in folder.rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): lines_of_code(path.read_text()) for path in paths}


def room_of(path, rooms):
    """Return the innermost of the rooms in which a file is, None if it is in none."""
    folders = [str(folder) for folder in Path(path).parents]
    return next((folder for folder in folders if folder in rooms), None)


def lines_by_room(lines_by_file, rooms):
    found = Counter(dict.fromkeys(rooms, 0))
    for path, lines in lines_by_file.items():
        found[room_of(path, rooms)] += lines
    return found


def check(lines_by_file, budgets):
    """Yield what is wrong with the budgets of rooms.

    Args:
        lines_by_file: Lines of code by path from the root.
        budgets: Tables of rooms.toml by room, each with `lines` and `reason`.
    """
    for path in sorted(lines_by_file):
        if room_of(path, budgets) is None:
            yield Finding(path, "found a file in no room; expected its folder with `lines` and `reason`")
    for room, lines in sorted(lines_by_room(lines_by_file, budgets).items(), key=str):
        if room is None:
            continue
        budget = budgets[room]["lines"]
        if lines > budget:
            yield Finding(
                room, f"{lines:,} lines of code, budget {budget:,}: remove what is no longer needed, or raise it"
            )
        elif budget > lines + slack(lines):
            yield Finding(room, f"{lines:,} lines of code, budget {budget:,}: python -m tests.rules.rooms --lower")


def slack(lines):
    """Return by how many lines the budget of a room may exceed the lines that it has."""
    return max(LEAST_SLACK, int(SLACK * lines))


def lowered(text, lines):
    """Return the text of rooms.toml with budgets of at most the lines of each room."""

    def lower(entry):
        return f"{entry['begin']}{min(int(entry['lines']), lines[entry['room']])}"

    return _LINES.sub(lower, text)


def budgets():
    return tomllib.loads(BUDGETS.read_text())["rooms"]


def findings():
    return [*check(sources(), budgets())]


def main(arguments):
    if arguments == ["--lower"]:
        BUDGETS.write_text(lowered(BUDGETS.read_text(), lines_by_room(sources(), budgets())))
    found = findings()
    sys.stdout.writelines(f"{finding}\n" for finding in found)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

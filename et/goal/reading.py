"""A GOAL file, rank by rank: one pass finds the text of each rank, whose trace is made on demand.

    num_ranks 2
    rank 0 {
    l1: calc 1500 cpu 0
    l2: send 65536b to 1 tag 7 cpu 0 nic 0
    l2 requires l1
    }

Source: ATLAHS, sim/LogGOPSim/txt2bin.re; Hoefler, Siebert and Lumsdaine, GOAL (ICPP 2009).
"""

import re
from pathlib import Path

from nadi import inputs
from nadi.et.blocks import TraceColumns
from nadi.et.errors import TraceError
from nadi.et.goal.operations import GoalOperation, checked, table_of
from nadi.et.table import TraceTable
from nadi.inputs.limits import MAX_NPUS

_MAX_HEAD_BYTES = 1 << 16  # of the text up to num_ranks
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
"""A comment; one without an end takes the rest of the text, so that matching takes linear time."""
_HEAD = re.compile(rb"\A(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+num_ranks\s+(\d{1,9})\b")
_RANK = re.compile(rb"^[ \t]*rank[ \t]+(\d{1,9})\s*\{", re.MULTILINE)
_NAME = r"[A-Za-z_]\w*"
_OPERATION = re.compile(
    rf"(?:(?P<label>{_NAME})\s*:\s*)?(?P<what>calc|send|recv)\s+(?P<size>\d{{1,18}})(?:b)?"
    r"(?:\s+(?P<way>to|from)\s+(?P<peer>-?\d{1,9}))?(?P<rest>(?:\s+(?:tag|cpu|nic)\s+-?\d{1,18})*)"
)
_WAITS = re.compile(rf"(?P<label>{_NAME})\s+(?P<how>i?requires)\s+(?P<parent>{_NAME})")
_Pairs = list[tuple[int, int]]
_EXPECTED = "calc, send, recv, requires or irequires of GOAL"


class GoalFile:
    """A GOAL file as text, and the position of each rank's text in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with inputs.refusing(path, "a GOAL schedule", TraceError):
            self._content = inputs.mapped(path)
        head = _HEAD.match(self._content[:_MAX_HEAD_BYTES])
        if head is None or not 1 <= int(head[1]) <= MAX_NPUS:
            raise TraceError(f"{path}: no num_ranks from 1 to {MAX_NPUS}, expected it first")
        self.ranks = int(head[1])
        self._places: dict[int, tuple[int, int]] = {}  # of each rank's text, from its bracket to the next rank
        # One pass finds the ranks; their text is parsed only on demand
        found = [(int(match[1]), *match.span()) for match in _RANK.finditer(self._content)]
        # A rank's text ends where the next rank begins, so that the last bracket need not be searched for
        ends = [*(start for _, start, _ in found[1:]), len(self._content)]
        for (rank, _, begin), end in zip(found, ends, strict=False):
            if rank in self._places or rank >= self.ranks:
                problem = "occurs twice" if rank in self._places else f"is beyond num_ranks {self.ranks}"
                raise TraceError(f"{path}: rank {rank} {problem}, expected each of 0 to {self.ranks - 1} once")
            self._places[rank] = begin, end

    def table(self, rank: int) -> TraceTable:
        """Return the trace of a rank.

        Args:
            rank: A rank of the schedule, from 0; one without a part in the file has an empty trace.
        """
        if rank not in self._places:
            return TraceColumns(rank, f"{self.path}").table()
        begin, end = self._places[rank]
        try:
            return _table(self.path, rank, self.ranks, self._content[begin:end].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: rank {rank}: {error.reason}, expected UTF-8") from error


def _table(file: Path, rank: int, num_ranks: int, text: str) -> TraceTable:
    """Return the trace of a rank from its text in the file, which begins after the opening bracket."""
    source = f"{file}: rank {rank}"
    text = _COMMENT.sub(" ", text).strip()
    if not text.endswith("}"):
        raise TraceError(f"{source}: ends without a bracket, expected }} after its lines")
    operations: list[GoalOperation] = []
    waits: list[tuple[str, str, str]] = []
    for line in re.split(r"[\n;]", text[:-1]):
        statement = line.strip()
        if not statement:
            continue
        if waiting := _WAITS.fullmatch(statement):
            waits.append((waiting["label"], waiting["how"], waiting["parent"]))
        else:
            operations.append(_operation(source, rank, num_ranks, statement))
    return table_of(file, rank, operations, *_waits(source, operations, waits))


def _operation(source: str, rank: int, num_ranks: int, statement: str) -> GoalOperation:
    """Return the operation in a statement of a rank; raise TraceError, which begins with `source`, if it is wrong."""
    found = _OPERATION.fullmatch(statement)
    if found is None:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected {_EXPECTED}")
    what = found["what"]
    # "send ... from" would match the pattern, too
    if (found["way"] or "") != {"calc": "", "send": "to", "recv": "from"}[what]:
        raise TraceError(f"{source}: found {statement[:60]!r}, expected send ... to, recv ... from, or calc")
    words = found["rest"].split()
    numbers = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    places = numbers.get("tag", 0), numbers.get("cpu", 0), numbers.get("nic", 0)
    operation = GoalOperation(what, int(found["size"]), int(found["peer"] or -1), *places, found["label"] or "")
    return checked(source, operation, rank, num_ranks)


def _waits(source: str, operations: list[GoalOperation], waits: list[tuple[str, str, str]]) -> tuple[_Pairs, _Pairs]:
    """Return the pairs of `requires` and of `irequires`, from (label, which of them, parent's label) of each wait.

    TraceError begins with `source`.
    """
    place: dict[str, int] = {}
    for i, operation in enumerate(operations):
        if operation.label and place.setdefault(operation.label, i) != i:
            raise TraceError(f"{source}: label {operation.label} occurs twice, expected each once")
    pairs: dict[str, _Pairs] = {"requires": [], "irequires": []}
    for label, how, parent in waits:
        if label not in place or parent not in place:
            missing = label if label not in place else parent
            raise TraceError(f"{source}: {label} {how} {parent}: no label {missing}, expected one of the rank")
        pairs[how].append((place[label], place[parent]))
    return pairs["requires"], pairs["irequires"]

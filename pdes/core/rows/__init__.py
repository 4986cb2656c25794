"""Every kind of row of a world: its words by name, with type, unit, meaning and kind.

The declaration of a kind of row is a class whose words have a kind and a meaning:

    class Token(Row):
        ...

        running = word("count", "tokens in use")
        head = word("phase", "list of phases that wait, -1 none")

The class yields the structured dtype that kernels and host code share (`Token.dtype`: `token.running`), the page
docs/reference/data-dictionary.md and checks of the house. A word is an int64, with
`bits` of the row or of the word itself narrower (32, 16, 8), or with kind FLOAT a float64; `many` of them are an array.
A row is padded to `words` words, so that it fills cache lines. In plain Python, sums and shifts of narrow words stay
narrow, so kernels first convert values that may outgrow them to int64. Words begin as 0 or as `begins`
(`pdes.core.jit.rows_of`).

The declaration is the one place that says what a word refers to. Code that walks over rows follows it: moving state to
another division of the fabric (pdes/checkpoint/moving.py) gives each word that names a thing of a logical process the
new number, and checks of a checkpoint (pdes/checkpoint/checking.py) bound it by the table that it indexes.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from nadi.compiling.kernel_cache import are_hashed


class WordKind(Enum):
    """What a word counts or names; with it, state could be moved to another number of ranks, or forward in time."""

    TIME = "ps since the run began"
    DURATION = "ps"
    BYTES = "bytes"
    COUNT = "number of things"
    FLAG = "0 or 1"
    FLAGS = "bit set"
    CODE = "one of several named values"
    SEQUENCE = "sequence number of packets"
    RATIO = "dimensionless, in units that the meaning names"
    FLOAT = "float64 in the unit that the meaning names"
    PACKED = "several fields, packed and unpacked by name, none of which is a number of one LP"
    TELEMETRY = "times, bytes and queues of links, as in `Telemetry.met`, of as many hops as the word `hops` says"
    PACKED_LOCAL = "several fields, of which some are numbers of this LP, which pdes/checkpoint moves by name"
    PACKET_WORD = "word 2 of a packet, which names a sending queue pair; word 1 of the row (`w1`) has its NPU"
    WAITER = "trace row of an NPU, or REF_INSTANCE | active collective, which waits, -1 nobody (`Message`)"
    ADDRESS = "memory address in this process"
    HOOK = "address of a compiled function, 0 none"
    PLACE = "offset in an array of this world"
    LANE = "row of `lane`, of an active collective of this LP"
    LINK = "outgoing link of this logical process (LP)"
    NODE = "node of this LP"
    LIST = "list of this LP's outbox"
    QUEUE_PAIR = "sending queue pair of this LP"
    RECEIVER = "receiving queue pair of this LP"
    RECORD = "packet record of this LP"
    MESSAGE = "message of this LP"
    INSTANCE = "active collective of this LP"
    ROW = "trace row of an NPU of this LP"
    PHASE = "phase of an active collective of this LP"
    NPU = "NPU of the whole fabric"
    GROUP = "group of the whole run, with what tells its collectives or connections apart"
    PLAN = "plan, schedule or lane of the whole run"


class RowsOf(Enum):
    """What an array of a world has rows of; the fields of `pdes.core.state` say it."""

    LP = "sums and times of the LP"
    NODE = "node"
    LINK = "outgoing link"
    BLOCK = "block of packet records"
    NPU = "NPU"
    PORT = "port of an NPU"
    ROW = "trace row of an NPU"
    SLOT = "group slot of an NPU"
    PAIR = "sending queue pair"
    RECEIVER = "receiving queue pair"
    MESSAGE = "message"
    INSTANCE = "active collective"
    DOMAIN = "NVLink domain"
    GROUP = "group of the run"
    EVENT = "event of a message-level model"
    HOP = "hop of a flow"


# Marks of arrays of a world besides the RowsOf whose rows they have, the WordKind of plain numbers, and Each.
BUILT = "built"  # the building of a world sets the array, so that a saved run does not hold it
OWN_WAY = "moved in its own way"  # lists, maps, queues and sums, which are not moved row by row to another LP
REMADE = "pool, which is made again"
EMPTY = "empty at a snapshot point"
ALONE = "of models with one LP"


class Rest(Enum):
    """How a word counts in the state of a run without packets and messages (pdes/reuse_kernels/quiescent.py)."""

    IGNORED = "it does not affect what follows"
    BEGINS = "it has its first value; otherwise something is under way"
    SAME = "equal states have equal values"
    FUTURE = "a time that matters while it has not passed"
    RECENT = "a time that matters for as long as ties are remembered"


@dataclass(frozen=True)
class Each:
    """Mark of an array with several items per row of its table: their number, or the word of `Constants` with it."""

    items: int | str


BITS_OF_BYTE = 8
INF = 1 << 62  # a time in ps later than any other


@dataclass(frozen=True)
class Word:
    """One word of a row, or `many` adjacent ones."""

    kind: WordKind
    meaning: str
    many: int = 1
    bits: int = 0
    begins: int = 0
    plus: int = 0
    is_built: bool = False
    rest: Rest = Rest.IGNORED


def word(
    kind: str,
    meaning: str,
    many: int = 1,
    bits: int = 0,
    begins: int = 0,
    plus: int = 0,
    *,
    is_built: bool = False,
    rest: str = "ignored",
) -> Any:
    """Declare a word of a row.

    Args:
        kind: Name of a WordKind in lower case: what the word counts or refers to.
        meaning: Phrase for the data dictionary.
        many: Number of adjacent words of that name; above 1 the word is an array.
        bits: Width in bits, 0 = the width of the row's words.
        begins: Value when a run begins.
        plus: Number that the word holds beyond the number of the thing that it names; below it, the word names nothing.
        is_built: The building of a world sets the word, from fabric and program alone, and no run changes it.
        rest: Name of a Rest in lower case: how the word counts in the state of a run without packets.

    Raises:
        ValueError: WordKind has no member of the name `kind`.
    """
    if kind.upper() not in WordKind.__members__:
        known = ", ".join(WordKind.__members__).lower()
        raise ValueError(f"kind {kind!r} of the word {meaning!r}; expected one of {known}")
    return Word(WordKind[kind.upper()], meaning, many, bits, begins, plus, is_built, Rest[rest.upper()])


class Row:
    """Base class of row kinds; see the module."""

    dtype: ClassVar[np.dtype]  # structured dtype of NumPy records
    declared: ClassVar[dict[str, Word]]  # words by name
    words: ClassVar[int]  # number of words with the padding
    by_dtype: ClassVar[dict[np.dtype, type["Row"]]] = {}  # all kinds of rows by their dtypes

    def __init_subclass__(cls, words: int = 0, bits: int = 64) -> None:
        """Create the dtype from the declared words; TypeError for names of NumPy's records, or too many words."""
        # a row kind of an algorithm (DcqcnState) has the words of its base first, so that `seen_as` views the same
        # memory
        inherited = getattr(cls, "declared", {})
        cls.declared = inherited | {name: value for name, value in vars(cls).items() if isinstance(value, Word)}
        taken = [name for name in cls.declared if hasattr(np.record, name)]
        if taken:
            raise TypeError(f"{cls.__name__}: NumPy's records have attributes {', '.join(taken)} of their own")
        fields: list[tuple] = []
        for name, declared in cls.declared.items():
            kind = np.dtype("float64" if declared.kind is WordKind.FLOAT else f"int{declared.bits or bits}")
            fields.append((name, kind) if declared.many == 1 else (name, kind, (declared.many,)))
        plain = np.dtype(fields, align=True)
        # in words of this row's width, rounded up: with bits=32, a row of three 32-bit words has used = 3
        used = -(-plain.itemsize // (bits // BITS_OF_BYTE))
        cls.words = words or used
        if used > cls.words:
            raise TypeError(f"{cls.__name__}: {used} words, expected at most {cls.words}")
        if used < cls.words:
            fields.append(("_padding", np.int64, (cls.words - used,)))
        # align=True as a C compiler: a word of k bytes begins at a multiple of k, which compiled code relies on
        cls.dtype = np.dtype((np.record, np.dtype(fields, align=True)))
        cls.by_dtype[cls.dtype] = cls

    @classmethod
    def place(cls, name: str) -> int:
        """Return the offset of a word, in words, in a row whose words have equal widths.

        Args:
            name: Name of the word.
        """
        return sum(declared.many for declared in list(cls.declared.values())[: list(cls.declared).index(name)])


def kinds_of_rows(base: type[Row] = Row) -> list[type[Row]]:
    """Return the classes below `base` that kernel sources declare and that are imported, sorted by their modules."""
    kinds = [kind for child in base.__subclasses__() for kind in (child, *kinds_of_rows(child))]
    return sorted((kind for kind in kinds if are_hashed(kind.__module__)), key=lambda kind: kind.__module__)

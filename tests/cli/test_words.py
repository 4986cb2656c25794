"""One word, one meaning: classes of different packages have different names."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiling", "et", "inputs", "nadi", "partition", "pdes", "topologies", "workload")
SAME_THING = {"Lane", "Phase", "View"}
"""Of the engine and of another package: rows of what the other means too, as the engine walks it."""
ANOTHER = {
    "Asked": "for messages; for collectives of a run's curves",
    "Exchange": "of parcels between teams of workers; of a folded plan's members",
    "Kind": "of a word; of a file",
    "Message": "as a network has it; as a schedule or a trace has it",
    "Messages": "of message-level models; of traffic",
    "Parameter": "of a congestion control; of a topology",
    "Place": "of a worker; of a chunk",
    "Ranks": "a mailbox; what ranks tell of themselves",
    "Request": "to send; to a server",
    "Row": "of a world; of a sweep",
}


def owners():
    """Name of a class -> packages that have one; those with an underscore are their file's own business."""
    found = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].add(package)
    return found


def test_a_class_of_the_engine_has_a_name_of_its_own():
    shared = {name for name, packages in owners().items() if "pdes" in packages and len(packages) > 1}
    assert shared - SAME_THING - set(ANOTHER) == set(), "find another name, or say here that what both are"
    assert (SAME_THING | set(ANOTHER)) - shared == set(), "what nobody needs"

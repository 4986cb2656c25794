"""Each public class has a name of its own, apart from those that a kind of plug-in prescribes."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("nadi", "pdes", "compiling", "partition", "et", "inputs", "workload", "topologies")
PRESCRIBED = {
    "Arguments": "topologies/builders",
    "TraceCheck": "et/checks",
    "Pipeline": "workload/generators/training/pipeline",
}
"""Names of classes that every file of a folder of plug-ins must have, and the folder."""


def test_public_class_names_are_unique() -> None:
    found = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                file = path.relative_to(ROOT)
                is_plug_in = isinstance(node, ast.ClassDef) and PRESCRIBED.get(node.name) == str(file.parent)
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_plug_in:
                    found[node.name].append(f"{file}:{node.lineno}")
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}

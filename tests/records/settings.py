"""Run files and command lines whose resolved settings are recorded.

`settings/*.txt` holds command lines and the files that they need, as transcripts do. The run files of the documents and
of scripts/ are read where they are.
"""

import tomllib
from collections import Counter
from pathlib import Path

from nadi.configuration.run_config import RunConfig
from tests.docs.pages import blocks
from tests.features.running import toml_of
from tests.features.situations.work import write_work
from tests.records import transcripts

FOLDER = Path(__file__).with_name("settings")
DEMO = transcripts.ROOT / "scripts" / "demo.toml"
_BASE = {
    "workload": {"model": "gpt3-125m", "plan": "dp16,gb16,zero1"},
    "topology": {"spec": "leaf-spine:npus=16,hosts_per_leaf=4,rate=100Gbps"},
    "compute": {"gpu": "a100"},
}
"""Sections of the run file that a block of a document adds to when it is no whole run file."""


def prepared(name, nadi, folder):
    """Write the files of a list of command lines into the current folder, and return those lines that simulate."""
    steps = transcripts.read(FOLDER / f"{name}.txt")
    for step in steps:
        if not step.command.startswith("nadi run"):
            done = transcripts.run(step, nadi, folder)
            assert done.code == 0, done
    (folder / "work").mkdir()
    write_work(folder / "work")
    own = documents() if name == "documents" else []
    return [step.command for step in steps if step.command.startswith("nadi run")] + own


def documents():
    """Write the run files of the documents and of scripts/ into the current folder, and return their command lines."""
    code = {block.page: block.text for block in reversed(blocks("python"))}  # the first of each page
    files = {"scripts/demo.toml": DEMO.read_text()}
    number = Counter()
    for block in blocks("toml"):
        sections = tomllib.loads(block.text)
        folder = Path(block.page).stem
        number[folder] += 1
        if sections.keys() <= RunConfig.model_fields.keys():
            files[f"{folder}/{number[folder]}.toml"] = _run_file(sections, block.text)
        if ".py" in block.text:
            files[f"{folder}/aimd.py"] = code[block.page]
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return [f"nadi run {name} --out out" for name in files if name.endswith(".toml")]


def _run_file(sections, text):
    """Return the text of a block of a document as a run file, with sections of another one where it lacks them."""
    if {"topology", "workload"} <= sections.keys() or {"topology", "jobs"} <= sections.keys():
        return text
    base = {name: keys for name, keys in _BASE.items() if name != "workload" or "jobs" not in sections}
    return toml_of(base | sections)

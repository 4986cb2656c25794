"""The blocks of docs/reference/python.md run, one after another, in one process."""

import re
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
FASTER = {'8, "gb64", confirm=0': '8, "gb8,tp4,mb1", confirm=0', "high - low > 100": "high - low > 300"}
"""Searches of the page, and those of fewer plans and rates that the test does in their place."""


@pytest.mark.slow
def test_every_block_runs(capsys):
    text = PAGE.read_text()
    for said, smaller in FASTER.items():
        assert said in text
        text = text.replace(said, smaller)
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    known = {}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"{PAGE.name} block {number}", "exec"), known)  # noqa: S102 - our own page
    finally:
        shutil.rmtree(known.get("folder", "/nowhere"), ignore_errors=True)
    said = capsys.readouterr().out
    assert "a step takes" in said
    assert re.search(r"the step is \d+\.\d% shorter", said)
    assert len(re.findall(r"GiB$", said, re.MULTILINE)) == 3
    assert "4 NPUs, 16 directed links" in said
    first, other = next(line.split() for line in said.splitlines() if re.fullmatch(r"\d+ \d+", line))
    assert int(first) > int(other) > 20_000_000  # a ring is as fast as its slowest cable, of 50 Gbps
    sufficient = int(re.search(r"(\d+) Gb/s are enough", said)[1])
    assert 400 < sufficient < 1600  # the search begins between a rate that is too low and one that suffices
    assert "collectives" in said
    assert len(re.findall(r"[\d.]+% shorter$", said, re.MULTILINE)) >= 2

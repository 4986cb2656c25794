"""Pages of docs/ and what stands in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code: where, in which language ("" = none said), its text."""

    page: str
    language: str
    text: str


def pages():
    return [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(language=None):
    return [
        Block(name_of(page), said, text)
        for page in pages()
        for said, text in _FENCE.findall(page.read_text())
        if language in {None, said}
    ]


def commands():
    """Page and words of each line of a fenced or indented block that calls nadi, also under mpiexec."""
    found = []
    for page in pages():
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^(?: {4}|\t)? *(?:mpiexec -n \d+ )?nadi (.*)$", _in_blocks(text), re.MULTILINE):
            said = re.split(r" {3,}|\s#|\s[|>&] |\s#", line)[0]
            if "..." not in said and said.strip():
                words = re.findall(r"\"[^\"]*\"|'[^']*'|\S+", said)  # what is in quotes is one word
                found.append((name_of(page), [word.strip("[]'\"") for word in words]))
    return found


def _in_blocks(text):
    """Fenced blocks without a language or of a shell, and indented lines."""
    fenced = [body for said, body in _FENCE.findall(text) if said in {"", "console", "sh", "bash"}]
    indented = [line for line in _FENCE.sub("", text).splitlines() if line.startswith("    ")]
    return "\n".join([*fenced, *indented])

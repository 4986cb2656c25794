"""Generate the parts of the documentation that come from declarations in the code.

    python scripts/document_tables.py

These are the section Columns of docs/results.md from nadi/simulation/schemas.py, docs/data-dictionary.md from the rows
of kernels, and the default table of docs/energy.md from nadi/energy/table.toml. tests/cli/test_schemas.py,
tests/pdes/test_data_dictionary.py and tests/cli/test_energy.py compare them with the code.
"""

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from compiling import kernel_sources
from nadi.energy.documentation import documentation as documentation_of_energy
from nadi.simulation.schemas import documentation as documentation_of_tables
from pdes.core.rows.row import Word, kinds_of_rows
from pdes.kernels import Row, WordKind

DOCS = Path(__file__).parents[1] / "docs"
COLUMNS = "<!-- made by scripts/document_tables.py of nadi/simulation/schemas.py, to the end of the page -->\n\n"
ENERGY = "<!-- made by scripts/document_tables.py of nadi/energy/table.toml, to the end of the page -->\n\n"
ROWS = "<!-- made by scripts/document_tables.py of the rows of kernels, to the end of the page -->\n\n"


def documentation_of_rows(kinds: Iterable[type[Row]]) -> str:
    """Return Markdown: the kinds of words, then a section for each kind of row, file by file."""
    return "\n".join([*_kinds_of_words(), *(line for kind in kinds for line in _section(kind))])


def _kinds_of_words() -> list[str]:
    rows = [f"| {kind.name.lower()} | {kind.value} |" for kind in WordKind]
    return ["## Kinds of words", "", "| kind | what the word holds |", "| --- | --- |", *rows, ""]


def _section(kind: type[Row]) -> list[str]:
    doc = " ".join((kind.__doc__ or "").split())
    written = ", ".join(f"`{name}`" for name in kind.written_by)
    facts = f"{_size(kind)}, declared in `{_file(kind)}`, {'written by ' + written if written else 'read only'}."
    rows = ["| word | kind | meaning |", "| --- | --- | --- |", *_words(kind)]
    return [f"## {kind.__name__}", "", doc, "", facts[0].upper() + facts[1:], "", *rows, ""]


def _file(kind: type[Row]) -> str:
    return f"{kind.__module__.replace('.', '/')}.py"


def _size(kind: type[Row]) -> str:
    size = f"{kind.words} words ({kind.dtype.itemsize} bytes)"
    if any(declared.bits for declared in kind.declared.values()):
        return f"{kind.dtype.itemsize} bytes"
    used = sum(declared.many for declared in kind.declared.values())
    return size + f", {used} of them in use" * (used < kind.words)


def _words(kind: type[Row]) -> Iterator[str]:
    """Yield a table row for each word of a row."""
    base = kind.__bases__[0]
    inherited: dict[str, Word] = getattr(base, "declared", {})
    if inherited:
        yield f"| ... | | as {base.__name__} |"
    for name, declared in kind.declared.items():
        if name in inherited or name.startswith("_"):
            continue
        many = f" [{declared.many}]" * (declared.many > 1)
        meaning = declared.meaning.replace("|", "\\|")
        bits = f", {declared.bits} bits" * (declared.bits > 0)
        yield f"| `{name}`{many} | {declared.kind.name.lower()}{bits} | {meaning} |"


def replace_after(page: Path, begin: str, generated: str) -> None:
    """Replace the text after `begin`."""
    text = page.read_text(encoding="utf-8")
    page.write_text(text[: text.index(begin)] + begin + generated, encoding="utf-8")


def main() -> None:
    """Write all three pages."""
    for module in kernel_sources.modules():
        importlib.import_module(module)
    replace_after(DOCS / "results.md", COLUMNS, documentation_of_tables())
    replace_after(DOCS / "energy.md", ENERGY, documentation_of_energy())
    replace_after(DOCS / "data-dictionary.md", ROWS, documentation_of_rows(kinds_of_rows()))


if __name__ == "__main__":
    main()

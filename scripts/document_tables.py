"""Write again what of the documents is made of declarations.

    python scripts/document_tables.py

That is the section Columns of docs/results.md, of nadi/schemas.py, docs/data-dictionary.md, of the rows that kernels
work on, and the default table of docs/energy.md, of nadi/energy/table.toml. tests/cli/test_schemas.py,
tests/pdes/test_data_dictionary.py and tests/cli/test_energy.py compare them.
"""

import importlib
from pathlib import Path

from compiling import kernel_sources
from nadi.energy.documentation import documentation as documentation_of_energy
from nadi.schemas import documentation as documentation_of_tables
from pdes.core.rows.dictionary import documentation as documentation_of_rows
from pdes.core.rows.row import kinds_of_rows

DOCS = Path(__file__).parents[1] / "docs"
COLUMNS = "<!-- made by scripts/document_tables.py of nadi/schemas.py, to the end of the page -->\n\n"
ENERGY = "<!-- made by scripts/document_tables.py of nadi/energy/table.toml, to the end of the page -->\n\n"
ROWS = "<!-- made by scripts/document_tables.py of the rows of kernels, to the end of the page -->\n\n"


def write_again(page: Path, begin: str, made: str) -> None:
    """Replace what stands behind `begin`."""
    text = page.read_text(encoding="utf-8")
    page.write_text(text[: text.index(begin)] + begin + made, encoding="utf-8")


def main() -> None:
    """All three pages."""
    for module in kernel_sources.modules():
        importlib.import_module(module)
    write_again(DOCS / "results.md", COLUMNS, documentation_of_tables())
    write_again(DOCS / "energy.md", ENERGY, documentation_of_energy())
    write_again(DOCS / "data-dictionary.md", ROWS, documentation_of_rows(kinds_of_rows()))


if __name__ == "__main__":
    main()

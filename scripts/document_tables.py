"""Write the section Columns of docs/results.md again, after a change of nadi/schemas.py.

    python scripts/document_tables.py

tests/cli/test_schemas.py compares them.
"""

from pathlib import Path

from nadi.schemas import documentation

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
BEGIN = "<!-- made by scripts/document_tables.py of nadi/schemas.py, to the end of the page -->\n\n"


def main() -> None:
    """Replace what stands behind BEGIN."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(BEGIN)] + BEGIN + documentation(), encoding="utf-8")


if __name__ == "__main__":
    main()

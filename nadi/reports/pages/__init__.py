"""Pages for a browser, with charts by plotly, an extra."""

import importlib.util


def has_plotly() -> bool:
    """Return whether plotly is installed, so that Nadi can write pages."""
    return importlib.util.find_spec("plotly") is not None


def missing_page_note(page: str) -> str:
    """Return a note that a command writes no page because plotly is not installed, or "" if it is."""
    return "" if has_plotly() else f", without {page}: plotly is not installed; pip install 'nadi[plot]'"

"""Pages that a browser shows, with pictures by plotly (an extra) where it is installed."""

import importlib.util


def has_plotly() -> bool:
    """Return whether plotly is installed, so that Nadi can write pages."""
    return importlib.util.find_spec("plotly") is not None

"""Pages that a browser shows, with pictures by plotly (an extra) where it is installed."""

import importlib.util


def has_plotly() -> bool:
    """Whether a page can be made."""
    return importlib.util.find_spec("plotly") is not None

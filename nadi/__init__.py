"""The front door: command line, run files, wiring of the stages, results and reports."""

from nadi.errors import ConfigError, OutputError

__version__ = "0.1.0.dev0"

__all__ = ["ConfigError", "OutputError", "__version__"]

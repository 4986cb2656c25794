"""`python -m nadi` is the command `nadi`."""

from nadi.cli import entry_point

entry_point()

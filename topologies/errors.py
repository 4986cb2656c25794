"""The exception of this package."""

from nadi.inputs.errors import InputError


class TopologyError(InputError):
    """A user-written topology cannot be built."""

"""The exception of this package."""

from nadi.inputs.errors import InputError


class PartitionError(InputError):
    """A fabric cannot be divided as the user requests."""

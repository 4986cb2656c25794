"""The exception of this package."""


class PartitionError(ValueError):
    """A fabric cannot be divided as the user requests. Its text is one line; `exit_code` is that of user errors."""

    exit_code = 2

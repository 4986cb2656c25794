"""Refusals of bad input: one line that names what was found and what is expected, and exit code 2."""

import pytest


def refused(kind, function, *arguments, **keywords):
    """Return the one line with which a call is refused.

    Args:
        kind: Class of the error, or a tuple of classes.
        function: Function that is called with the arguments and keywords that follow.
    """
    with pytest.raises(kind) as error:
        function(*arguments, **keywords)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    return str(error.value)

"""Errors that a command reports in one line; each class has the exit code of the command that it ends."""

import errno
import os

from nadi.inputs.errors import InputError

# errors of a device or of the process rather than of a name: no other run file or option avoids them
_OF_DEVICES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that an error with an exit code, or an OSError, ends.

    1 if the reason is a device that is full or has failed, whatever error a writer of files has made of that.
    """
    reason: BaseException | None = error
    while reason is not None:
        # files that Nadi refuses to read because of their size have EFBIG with a text of their own
        number, text = getattr(reason, "errno", None), getattr(reason, "strerror", None)
        if number in _OF_DEVICES and (number != errno.EFBIG or os.strerror(errno.EFBIG) in str(text)):
            return 1
        reason = reason.__cause__ or reason.__context__
    return int(getattr(error, "exit_code", 2))


class ConfigError(InputError):
    """A run file, option or argument is wrong. The message is one line: file, section, key, and what was expected."""


class OutputError(InputError):
    """Results cannot be written where the user requests them. The message has one line: folder or file, and reason."""

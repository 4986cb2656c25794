"""What the checks of traces find in files and in tables."""

import numpy as np

from nadi import et
from nadi.et.checking import Sources
from nadi.et.checks import check_traces


def checked(folder, files, *, users=None, examples=None, npus=None, **more):
    """Return the report of files; without `users` each is of one NPU, in order."""
    users = [[npu] for npu in range(len(files))] if users is None else users
    numbers = tuple(np.array(each, np.int64) for each in users)
    count = sum(map(len, users)) if npus is None else npus
    return check_traces(Sources(folder, tuple(files), numbers, tuple(examples or [-1] * len(files)), count, **more))


def checked_tables(folder, tables, **more):
    """Return the report of the tables of NPUs 0, 1, and so on, written into a new folder."""
    folder.mkdir()
    files = [folder / f"trace.{npu}.et" for npu in range(len(tables))]
    for npu, file in enumerate(files):
        et.write_table(file, tables[npu])
    return checked(folder, files, **more)

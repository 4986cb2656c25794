"""The commands, one module each, found by looking into this folder.

A module has `register(app)`, which adds its command or group of commands. It imports what the command needs when the
command runs: `nadi --help` must neither start Numba nor MPI.
"""

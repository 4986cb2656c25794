"""The commands, one module each; `nadi.cli.app` imports all modules of this folder.

A module has `register(app)`, which adds its command or group of commands. It imports the modules of a command when the
command runs, because `nadi --help` must start neither Numba nor MPI.
"""

"""Runs in which collectives and messages take times that are given, one NPU of each class for all of it.

In reading order: `likeness`, which NPUs do the same; `folded_program`, what one of each does, and what is to be given;
`state` and `rows`, what a run works on; `advance`, its kernel, whose NPUs are the engine's; `run`; and `waiting`, who
waits for whom where it does not end.
"""

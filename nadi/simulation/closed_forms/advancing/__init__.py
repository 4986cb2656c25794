"""Runs in which collectives and messages take given times; one NPU of each class represents the class.

Modules in reading order: `likeness` finds classes of NPUs that do the same; `folded_program` lays out the work of one
NPU per class and the keys of the required times; `state` and `rows` hold the state of a run; `advance` is its kernel,
whose NPUs are those of the engine; `run` starts it; `waiting` explains a deadlock.
"""

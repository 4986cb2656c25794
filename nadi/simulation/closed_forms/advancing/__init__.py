"""Runs in which collectives and messages take given times; one NPU of each class represents the class.

Modules in reading order: `equivalence`, classes of NPUs that do the same, and the work of one NPU per class; `state`,
the state of a run; `advance`, the kernel; `run`, which starts it.
"""

"""Kernels of closed forms, which know no packets of the engine.

`closed_form`, `closed_form_state`, `closed_form_run` and `likeness`: runs in which collectives and messages take times
that are given, one NPU of each class for all of it. `idle_network` and `idle_state`: the player of a collective's steps
on an idle fabric (docs/collectives.md), the second and simpler network that the engine is held against.
"""

"""Kernels of closed forms, which know no packets of the engine.

`likeness`, `folded_program`, `closed_form_run`, `closed_form`, `closed_form_state` and `waiting`: runs in which
collectives and messages take times that are given, one NPU of each class for all of it. `idle_network`, `idle_events`
and `idle_state`: the player of a collective's steps on an idle fabric (docs/collectives.md), the second and simpler
network that the engine is held against.
"""

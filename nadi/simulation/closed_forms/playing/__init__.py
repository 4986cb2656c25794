"""Packet-by-packet play of one collective's steps on an idle fabric (docs/explanation/collectives.md).

Modules in reading order: `idle_paths`, the paths of a group's messages; `state`, a group as arrays; `network`, the
kernel, a second and simpler network model that tests compare with the engine; `idle_fabric`, which plays a schedule;
`periodic_groups`, fewer members that take the same time; `played`, which decides what is played.
"""

"""Packet-by-packet play of one collective's steps on an idle fabric (docs/explanation/collectives.md).

Modules in reading order: `idle_paths` describes the paths of a group's messages; `state` and `rows` hold a group as
arrays; `events` and `network` are the kernel, a second and simpler network model that tests compare with the engine;
`idle_fabric` lays out a schedule and plays it. `alike` replaces a periodic group by a few members; `played` decides
which collectives are played.
"""

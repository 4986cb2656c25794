"""A collective's steps played packet by packet on an idle fabric (docs/explanation/collectives.md).

In reading order: `idle_paths`, what messages of a group pass; `state` and `rows`, what a group is as arrays; `events`
and `network`, the kernel: the second and simpler network that the engine is held against; `idle_fabric`, what it is
asked. `alike`: a few members where all do the same; `played`: what is played, and what would take too long.
"""

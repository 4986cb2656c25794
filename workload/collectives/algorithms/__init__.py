"""Algorithms of collectives, one file each; `workload.collectives` finds them by looking into this folder."""

"""Algorithms of collectives, one file each; `inputs.plug_ins` finds them."""

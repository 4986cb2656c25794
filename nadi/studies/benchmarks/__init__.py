"""How fast this machine simulates: `nadi bench`."""

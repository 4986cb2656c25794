"""Plans, what one member of a collective does, and what several algorithms make theirs of."""

"""New traces like those of a set: learned from their streams, generated, and measured against traces that were held out."""

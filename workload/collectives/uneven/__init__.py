"""All-to-alls in which each pair exchanges another number of bytes: what traces say of them, and their plans."""

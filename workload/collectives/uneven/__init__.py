"""All-to-alls in which each pair exchanges its own number of bytes: their sizes in traces, and their plans."""

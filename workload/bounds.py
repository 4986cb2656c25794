"""How many NPUs, tags and equal messages there may be: what the engine packs into one key (Program.recv_key)."""

MOST_NPUS = 1 << 19
MOST_TAGS = 1 << 24
MOST_OF_ONE_KEY = 1 << 20

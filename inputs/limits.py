"""Limits that every folder shares: what the engine packs into one word (pdes/core/packet.py) bounds what is read."""

MAX_NPUS = 2**19 - 1  # NPUs of a fabric, a plan or a job: their numbers and differences of these fit into 20 bits
TAGS = 2**24  # different tags of messages
MAX_EQUAL_MESSAGES = 2**20  # messages of two NPUs with one tag, and collectives of a group, that can be told apart
PEER_BIAS = MAX_NPUS + 1  # added to a relative peer in the key of a receive, so that the key is not negative

"""The message-level models: a message moves as one, where packets do not matter."""

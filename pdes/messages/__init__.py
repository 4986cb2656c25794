"""The message-level models: messages that go whole, where packets do not matter."""

"""Message-level models: a message moves as a whole, without packets."""

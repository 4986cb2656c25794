"""Every kind of row that a world holds: its words by name, with type, unit, meaning and kind."""

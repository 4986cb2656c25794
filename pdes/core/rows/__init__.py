"""Every kind of row of a world: its words by name, with type, unit, meaning and kind."""

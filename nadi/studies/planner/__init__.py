"""Which parallel plan trains a model soonest: all valid plans, those that fit, ranked by the time of their step."""

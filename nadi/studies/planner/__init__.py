"""The planner: enumerate valid parallel plans of a model, drop those that do not fit, rank the rest by step time."""

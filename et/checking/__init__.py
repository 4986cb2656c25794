"""Looking for what is wrong in traces: what checks are given, what they say, and mending. The checks: `et.checks`."""

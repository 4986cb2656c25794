"""Why a run took as long as it did: its critical path, what bound each piece of it, and what would make it shorter."""

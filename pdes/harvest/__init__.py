"""What a run has brought: from worlds to results, or to who waits for whom."""

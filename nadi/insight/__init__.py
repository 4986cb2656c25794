"""What finished runs mean: their times by cause, critical paths, comparisons, and measured times beside them."""

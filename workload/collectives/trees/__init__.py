"""Trees on which data go up and down: of switches that reduce, and the binomial tree among members."""

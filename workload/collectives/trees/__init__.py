"""Trees along which data moves up and down: of switches that reduce, and the binomial tree among members."""

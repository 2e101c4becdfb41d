"""The exact posterior over texts of a grammar whose token automaton is small."""

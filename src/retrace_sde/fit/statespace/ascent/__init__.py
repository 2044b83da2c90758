"""How the likelihood of a state-space model is climbed: EM with extrapolation, scoring, and quasi-Newton steps at the end."""

"""The parts of `ReTrace`: checks at the entry, standard units, the fit of a panel, and how an outcome becomes a result."""

"""An order known: from moments or smoothed states to parameters and their errors."""

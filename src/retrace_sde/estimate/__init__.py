"""An order known: from moments to parameters and their errors."""

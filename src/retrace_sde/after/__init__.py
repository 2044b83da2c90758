"""After a fit: what its residuals say, what comes next, what was missing, and how other orders compare."""

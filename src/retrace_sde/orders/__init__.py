"""Parameters known: what orders cost, the best of them, and draws from their posterior."""

"""One representation of the data: panels, what is known of their time, pieces of them, and the checks at the entry."""

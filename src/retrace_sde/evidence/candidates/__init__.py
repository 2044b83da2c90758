"""The candidate models of a panel along an order: one file for each, and one list of them (`registry`)."""

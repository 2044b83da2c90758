"""Likelihoods of a panel along an order: states seen or hidden, equal or unequal gaps."""

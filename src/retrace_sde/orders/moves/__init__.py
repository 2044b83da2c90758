"""Moves of an order: how they are proposed, what they cost, what is known against them, and one driver for all."""

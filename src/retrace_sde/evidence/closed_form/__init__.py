"""Closed forms of panels along an order: linear steps fitted in both directions, and panels simulated from them."""

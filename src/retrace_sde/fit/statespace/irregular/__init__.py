"""Steps that differ: exact transitions over gaps of any length, inputs, and gaps that are not known."""

"""Files from strangers: what a file claims to hold is looked at before anything in it is read."""

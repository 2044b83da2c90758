"""Models whose steps differ: known, scheduled, estimated or drawn gaps, and inputs."""

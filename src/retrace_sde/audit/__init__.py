"""Which time stamps are wrong, and what data without dates still tell of time."""

"""Commands that ask something of a file whose rows have times: its direction."""

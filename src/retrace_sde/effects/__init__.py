"""What a treatment would have done."""

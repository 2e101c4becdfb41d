"""What a user may ask the output to be."""

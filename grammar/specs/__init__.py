"""The kinds of constraints that a user may choose."""

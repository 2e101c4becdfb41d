"""dlm where other libraries are: each module is for one of them, and imports it."""

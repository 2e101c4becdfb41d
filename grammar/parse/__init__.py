"""Where in its grammar a text is."""

"""Files of rows, each answered by a model: read, run, written, and gone on with after a kill."""

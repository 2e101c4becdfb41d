"""Batches: files of rows, each answered by a model; a killed run can be resumed."""

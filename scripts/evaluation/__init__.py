"""Evaluations of answers: tasks, modes of decoding, their runs, the judge, and the report."""

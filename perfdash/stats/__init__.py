"""Pure functions on numbers: intervals, verdicts, means. Knows nothing of models or processes."""

"""The report of a run that measured each model with several techniques (back end and dtype)."""

"""The report that compares techniques (back end and dtype) on each model."""

"""What changed in a case between two runs: its structure, generated code, libraries and environment."""

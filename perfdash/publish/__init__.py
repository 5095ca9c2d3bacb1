"""GitHub: what was rendered elsewhere becomes comments and issues there, each exactly once."""

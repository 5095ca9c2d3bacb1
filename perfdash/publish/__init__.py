"""Send reports out: GitHub comments and issues, each exactly once; mail; chat webhooks."""

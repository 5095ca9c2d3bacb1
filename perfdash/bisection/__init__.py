"""Which of many builds brought a change: what measurements say of each, and what to try next.

search, likelihood, posterior and replay are pure: places in an ordered list, and numbers. engine and
workbench do what they ask for: builds, measurements, the journal.
"""

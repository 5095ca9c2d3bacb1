"""Which of many builds brought a change: what measurements say of each, and what to try next.

Pure: it knows places in an ordered list and numbers, nothing of git, torch, builds, files or processes.
"""

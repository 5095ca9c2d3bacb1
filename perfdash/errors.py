"""Errors that end a command, each with its documented exit code."""


class PerfdashError(Exception):
    """Ends the command with one message and `exit_code`; the message says what, where, what to do."""

    exit_code = 3


class UsageError(PerfdashError):
    """Wrong usage or input: exit code 2."""

    exit_code = 2


class MachineError(PerfdashError):
    """The machine or environment failed: exit code 3."""

    exit_code = 3

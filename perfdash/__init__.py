"""perfdash: a performance tracker for torch.compile and its rivals."""

__version__ = "0.2.0"

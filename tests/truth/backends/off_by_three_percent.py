"""A back end whose outputs are the model's, three per cent larger."""

LOSSY = True
CAPTURES = False


def prepare(module, inputs, job):
    return lambda *arguments: module(*arguments) * 1.03

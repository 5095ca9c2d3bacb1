"""A back end that is wrong about the first of each batch, and right about all others."""

LOSSY = True
CAPTURES = False


def prepare(module, inputs, job):
    def call(*arguments):
        scores = module(*arguments).clone()
        scores[0] = -scores[0]
        return scores

    return call


def notes(model):
    return ["the first of each batch is wrong"]

"""The same, but what it holds is no tensor: 64 MiB of the process's own, and 32 MiB more in a call."""

MIB = 1 << 20
CAPTURES = False


class Opaque:
    def __init__(self, module):
        self.module = module
        self.held = bytearray(b"1" * (64 * MIB))

    def __call__(self, x):
        work = bytearray(b"1") * (32 * MIB)
        return self.module(x) + 0 * work[0]


def prepare(module, inputs, job):
    return Opaque(module)


def reopen(model):
    return Opaque(model.module)

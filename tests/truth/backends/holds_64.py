"""A back end that holds a tensor of 64 MiB in place of the model, and needs 32 MiB more in a call."""

import torch

CAPTURES = False
MIB = 1 << 20


def prepare(module, inputs, job):
    held = torch.ones(16 * MIB)

    def call(x):
        work = torch.ones(8 * MIB)
        return module(x) + 0 * (held[0] + work[0])

    call.held = held
    return call


def held_tensors(model):
    return [model.held]

"""Models that torchbench needs and no package has: a file here is a model, written from its paper.

Each has `build(batch_size, **settings) -> (module, inputs)`: random weights, random inputs of the
benchmark's shapes, both in float32 on the CPU from torch's generator, so that a seed settles them.
"""

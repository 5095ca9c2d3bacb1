"""Models written from their papers, one file each, because no package has them.

A file has `build(batch_size, **settings) -> (module, inputs)`. Weights are random (the digits models are
trained), inputs have the benchmark's shapes; both are in float32 on the CPU and come from torch's
generator, so that a seed fixes them.
"""

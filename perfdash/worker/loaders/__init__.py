"""Loaders, which create a model and its inputs: one file each.

A loader has `load(job) -> (module, inputs)`: the module on the CPU in float32, the inputs as a tuple or a
dict of call arguments. PRELOAD names the packages that are imported once, before cases fork.
"""

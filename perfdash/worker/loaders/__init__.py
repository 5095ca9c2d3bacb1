"""Where models come from: a file here is a loader.

A loader has `load(job) -> (module, inputs)`: the module on the CPU in float32, inputs a tuple or a
dict of what it is called with; and PRELOAD, the packages that are imported once before cases fork.
"""

"""How a model is run: a file here is a back end.

A back end has `prepare(module, inputs, job) -> callable` that is called like the module. What it
costs until the first call has returned counts as compilation.
"""

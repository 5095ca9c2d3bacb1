"""How a model is run: a file here is a back end.

A back end has `prepare(module, inputs, job) -> callable` that is called like the module. What it
costs until the first call has returned counts as compilation. Where compiling changes the random
numbers that a model draws, `prepare_repeatable` does the same without that, for the accuracy check.
"""

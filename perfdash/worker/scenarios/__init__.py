"""What is done with a model: a file here is a scenario.

A scenario has `make_step(model, inputs, job) -> step`: step() does one unit of work and returns its
outputs; `set_mode(module)`; and `context(job)`, a context manager in force for every step of either side.
"""

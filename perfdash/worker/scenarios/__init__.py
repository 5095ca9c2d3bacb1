"""Scenarios (inference, training, generation): each file here is one.

A scenario has `make_step(model, side, device) -> step`: step() does one unit of work on the side's inputs
(eager_and_compiled.Side) and returns its outputs; `model` is the side's module, or what a back end made of
it. Also `set_mode(module)`, and `context(job)`, a context manager around every step of either side. Optional:

- CHANGES_MODULE = True: a step changes parameters, which are set back whenever inputs are;
- OUTPUT: the key of the model's own output in what observe() returns;
- OF_GROUP: the least size of an output as a share of its group's (output_comparison.compare);
- GATED: groups of outputs that the gates of ReLUs move (output_comparison.compare);
- step.observe(): a step that returns everything to be compared, gradients too; the caller copies it before
  the next step;
- step.follow(other): observe() repeats the choices of another step, where a step makes choices;
- step.parts: the names of the parts of a step that are timed separately; each call appends one row of marks
  (Cpu.mark) to step.marks, at least one more than there are parts: the last part is the rest of the step;
- step.release(): frees what the step holds between calls;
- all_inputs(job, inputs, load): the inputs of a side, where these are more than one call's, and
  example(inputs): those of one call; before_compile(side, step), ahead of the first call through dynamo;
- further(comparison): yields what is measured after the timing, as the event `sizes`, as it grows.
"""

"""What is done with a model: a file here is a scenario.

A scenario has `make_step(model, side, device) -> step`: step() does one unit of work on the side's inputs
(sides.Side) and returns its outputs, where `model` is what is called: the side's module, or what a back end
made of it. Further `set_mode(module)`, and `context(job)`, a context manager in force for every step of
either side; and, where there is need:

- CHANGES_MODULE = True: a step changes parameters, which are set back wherever inputs are;
- OF_GROUP: what share of the size of its group an output counts as at least (accuracy.compare);
- GATED: groups of outputs that the gates of ReLUs move (accuracy.compare);
- step.observe(): a step whose outputs are all that is to be compared, gradients too; the caller copies
  them before another step;
- step.follow(other): where a step makes choices, observe() makes those of the other one again;
- step.parts: the names of the parts of a step that are timed apart; each call of the step appends to
  step.marks one row of marks (Cpu.mark), one more than there are parts, or more: the last part is all that
  comes after the others;
- step.release(): lets go of what it holds between calls.
"""

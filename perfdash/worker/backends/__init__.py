"""How a model is run: a file here is a back end.

A back end has `prepare(module, inputs, job) -> callable` that is called like the module and returns
what it returns; the module itself stays as it is, for it is the other side. What it costs until the
first call has returned counts as compilation. Further, where there is need:

- PACKAGES, EXTRA: what it imports beside torch, and perfdash's extra that brings it; EXTRA_ON_GPU where
  that is another one for a GPU;
- DTYPES, DEVICES: those it takes, where that is not all; SCENARIOS: what it can be used for, inference
  unless it says otherwise;
- LOSSY = True: another result is wanted (integers), which is judged by its distance to eager's;
- CAPTURES = False: it does not go through dynamo, so that graphs and breaks say nothing;
- complaints(job): what of the job's options this torch does not do;
- held_tensors(model): the tensors that what `prepare` returned needs, where it does not need the
  module's (None where it does after all); reopen(model): another one just like it, where what it holds is
  no tensor;
- OPAQUE_ON_GPU = True: on a GPU its memory is not torch's, and torch cannot tell it;
- notes(model): what a reader of the result should know;
- prepare_repeatable: the same for the accuracy check, where compiling changes the random numbers
  that a model draws.
"""

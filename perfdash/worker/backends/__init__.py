"""Back ends (how a model is run): each file here is one.

A back end has `prepare(module, inputs, job) -> callable`. The callable takes and returns what the module
does; the module itself must not change, since it is the eager side, nor must torch's settings of the process:
with a back end of the user's own such a case fails (worker/shared_state.py). The time until the first call
has returned counts as compilation. Optional:

- PACKAGES, EXTRA: what it imports beside torch, and the extra of perfdash that installs it; EXTRA_ON_GPU: the
  extra for a GPU, where it differs;
- MODULES: modules that converting imports; they are imported before the clock starts, where they exist;
- DTYPES, DEVICES: the supported ones, all by default; SCENARIOS: inference by default;
- OPTIONS: which of compile_mode, dynamic and inductor_config it reads, all by default; a case that a
  configuration gives another one is skipped;
- LOSSY = True: integers are intended, and the outputs are judged by their distance to eager's;
- CAPTURES = False: it does not go through dynamo, so that graphs and breaks have no meaning; for a user's own
  file without it perfdash makes what inductor's cases share (worker/compiler_caches.py);
- OWN_THREADS = True: on the CPU it computes in threads of its own, not in torch's OpenMP threads, so each
  sample waits until those of the other side sleep;
- effective_job(job): the job with the mode and inductor options that the back end adds, for the script that
  reproduces wrong outputs;
- complaints(job): messages about the job's options that this torch does not support;
- held_tensors(model): the tensors that the callable needs, where it does not need the module's (None where it
  does after all); reopen(model): a second callable just like it, where its weights are no tensors;
- OPAQUE_ON_GPU = True: on a GPU it has an allocator of its own, which torch cannot measure;
- artifact(model): facts of the file that it makes; standalone(model, inputs, job): that file loaded and
  called in a fresh process without the model's code (worker/standalone_package.py);
- notes(model): remarks for the readers of the result;
- vector_isa(job, find_out): the vector instructions that it compiles for, tested before the clock starts; one
  on top of inductor imports inductor's, else torch 2.13 tests them within the compilation latency;
- compile_sample(job): compiles a small model for the CPU, where torch.compile makes other precompiled headers
  than this back end (worker/compiler_caches.py);
- prepare_repeatable: like prepare, for the accuracy check of a model that draws random numbers, where
  compiling changes them. Without it such a model that fails is not judged where other numbers explain it.
"""

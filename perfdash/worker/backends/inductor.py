"""torch.compile with its default compiler."""

from __future__ import annotations

from typing import Any, Optional

from perfdash.records import Job

SCENARIOS = ("inference", "training", "generation", "sizes")
OPTIONS = ("compile_mode", "dynamic", "inductor_config")


def prepare(module: Any, inputs: Any, job: Job) -> Any:
    """torch.compile(module) with the job's mode, dynamic shapes and inductor configuration."""
    import torch
    import torch._inductor.config as inductor_config

    for key, value in job.inductor_config.items():
        _set(inductor_config, key, value)
    return torch.compile(module, backend="inductor", mode=job.compile_mode, dynamic=job.case.dynamic or None)


def prepare_repeatable(module: Any, inputs: Any, job: Job) -> Any:
    """Like prepare, with the random numbers that eager draws: for the accuracy check of a random model.

    It is a separate back end to dynamo, so that the code that is timed does not change. The options that
    `prepare` has set hold for the whole process; those of a mode do not.
    """
    import torch
    from torch._inductor.compile_fx import compile_fx

    of_mode = torch._inductor.list_mode_options(job.compile_mode) if job.compile_mode else {}

    def compile_with_eager_random(graph: Any, example_inputs: Any) -> Any:
        return compile_fx(graph, example_inputs, config_patches={**of_mode, "fallback_random": True})

    return torch.compile(module, backend=compile_with_eager_random, dynamic=job.case.dynamic or None)


def complaints(job: Job) -> list[str]:
    """The job's options that this torch does not know, each as a message for the user."""
    import torch
    import torch._inductor.config as inductor_config

    messages = []
    for key, value in job.inductor_config.items():
        if not _has(inductor_config, key):
            messages.append(f"inductor has no configuration key {key!r} in torch {torch.__version__}")
        elif wanted := _other_kind(_get(inductor_config, key), value):
            messages.append(f"inductor's configuration key {key!r} is {wanted}, not {value!r}")
    modes = list(dict.fromkeys(["default", *torch._inductor.list_mode_options()]))
    if job.compile_mode is not None and job.compile_mode not in modes:
        messages.append(f"torch.compile has no mode {job.compile_mode!r}; there are: {', '.join(modes)}")
    return messages


def vector_isa(job: Job, find_out: bool) -> Optional[str]:
    """The vector instructions that inductor compiles for on this machine.

    Inductor compiles a test once a process, and silently falls back to narrower instructions when that fails,
    also when the compiler was killed. None where it has not run the test yet, unless `find_out`.
    """
    try:
        from torch._inductor import cpu_vec_isa as isa
    except ImportError:  # torch 2.4
        from torch._inductor import codecache as isa
    if find_out:
        import torch._inductor.config as inductor_config

        for key, value in job.inductor_config.items():
            _set(inductor_config, key, value)
    elif not isa.valid_vec_isa_list.cache_info().currsize:
        return None
    return str(isa.pick_vec_isa())


def _set(config: Any, key: str, value: Any) -> None:
    path, _, last = key.rpartition(".")
    setattr(_get(config, path) if path else config, last, value)


def _get(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = getattr(config, name)
    return config


def _other_kind(present: Any, value: Any) -> Optional[str]:
    """What a value must be, by the present one; None where it is, or nothing is known.

    torch checks no type, and any text is true: freezing="off" turned freezing on.
    """
    if value is None:
        return None
    if isinstance(present, bool):
        return None if isinstance(value, bool) or value in (0, 1) else "true or false"
    if isinstance(present, (int, float)):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return None if is_number else "a number"
    return None


def _has(config: Any, key: str) -> bool:
    for name in key.split("."):
        if not hasattr(config, name):
            return False
        config = getattr(config, name)
    return True

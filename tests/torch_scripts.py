"""Scripts in processes of their own, forked from one that has imported torch: an import takes 5 s each.

So does perfdash start the processes of its cases. What a script sets or compiles is gone with its process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path


class TorchScripts:
    """The process that has imported torch, started by `with`; `env` is what differs from this process's."""

    def __init__(self, **env: str) -> None:
        self._env = {**os.environ, **env}

    def __enter__(self) -> TorchScripts:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_scripts"],
            cwd=Path(__file__).parents[1],
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input

    def run(self, script: str, *arguments: str, **env: str) -> str:
        """What a script prints, run to its end with these arguments and variables; it must not fail."""
        with tempfile.NamedTemporaryFile("w+") as out:
            call = {"script": script, "arguments": arguments, "env": env, "out": out.name}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(call) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline()
            printed = out.read()
        assert status == "0\n", f"ended with {status}\n{printed}"
        return printed


def serve() -> None:
    """Forks for every line of the standard input, and prints how each process ended."""
    from torch._inductor import codecache, compile_fx, cpp_builder, cpu_vec_isa  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(call: dict) -> None:
    """Run a script in this process, and end it as an interpreter does."""
    out = os.open(call["out"], os.O_WRONLY)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, out)):
        os.dup2(descriptor, number)
    os.environ.update(call["env"])
    tempfile.tempdir = None
    sys.argv = ["-c", *call["arguments"]]
    code = 0
    try:
        exec(compile(call["script"], "<script>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()

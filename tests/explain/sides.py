"""Sides of an explanation that were never measured."""

from __future__ import annotations

from perfdash.explain.structure_comparison import side_of
from perfdash.history.results import Row, digest
from perfdash.records import Case
from tests.history.made import run

GOOD, BAD = "2026-11-01", "2026-11-02"
CASE = Case("timm", "vit_tiny")
LIBRARIES = {"libtorch_cpu.so": "1" * 16, "libc.so.6": "2" * 16, "torch (Python)": "3" * 16}
BREAK = "call to a function that dynamo cannot trace: print"


def kernel(operators, number=0, source="", **change):
    """A kernel with these fused operators; another `source` is another fingerprint."""
    names = operators.split()
    name = f"cpp_fused_{'_'.join(names)}_{number}"
    return {
        "name": name, "kind": "cpp", "operators": names, "graph": 0, "calls": 1, "bytes": 900,
        "fingerprint": digest([operators, source])[:16], **change,
    }  # fmt: skip


def structure(*kernels, **change):
    """What compiling produced, with these kernels."""
    plain = {
        "kernels": list(kernels), "kernel_calls": len(kernels), "code_bytes": 1000 * len(kernels),
        "library_calls": {"extern_kernels.addmm": 2}, "guards": 40, "recompiles": 0, "graphs": 1,
        "graph_breaks": 0, "break_reasons": {}, "fallbacks": {}, "frames_given_up": {}, "isa": "avx512",
        "calls_captured": 12, "settings": {"mode": None, "config": {}}, "version": 1, "loaded": LIBRARIES,
        "fingerprint": digest([kernel["fingerprint"] for kernel in kernels])[:16],
    }  # fmt: skip
    return {**plain, **change}


def side(of, night=GOOD, *, phases=None, case=CASE, values=None, verdict=None, **change):
    """A side of an explanation with this structure; `change`: of the run."""
    details = {"compile_phases_s": phases} if phases else {}
    row = Row(case, "pass", values or {}, verdict=verdict, details=details, structure=of)
    return side_of(run(night, **change).run, row)

"""What compiling produced: kernels, library calls, guards, recompiles, and fingerprints of the code.

All of it is read from what compiling leaves anyway: dynamo's records of compilations, and the wrappers that
inductor writes into the case's cache folder, which contain the source of every kernel. A fingerprint ignores
comments, paths, hashes and kernel numbers. It covers the vector instructions and the settings of inductor,
so that equal fingerprints mean the same code for the same machine. `text` is a fingerprint of the code alone.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterable, Iterator, Optional

VERSION = 1  # of the fingerprints: another normalisation raises it, and none is equal to one of before
_MOST_FRAMES = 512  # compilations that dynamo keeps records of
_MOST_BYTES = 64 << 20  # of generated code that is read
_MOST_KEPT = 8 << 20  # bytes of compressed code of a case
_MOST_REASONS = 10
_REASON_CHARS = 200

_DEFINITION = re.compile(r"^(\w+) = async_compile\.(\w+)\(", re.MULTILINE)
_DEFINITIONS_END = re.compile(r"^(async_compile\.wait\(|del async_compile)", re.MULTILINE)
_BENCHMARK = re.compile(r"^def (get_args|benchmark_compiled_module)\(", re.MULTILINE)
_LIBRARY_CALL = re.compile(
    r"(?:= |^\s*|\()((?:extern_kernels|torch\.ops\.[a-z]\w*|aten|inductor_ops|_quantized)\.\w+(?:\.\w+)?)\(",
    re.M,
)
_CPP_WRAPPER, _CPP_SOURCE = "CppWrapperCodeCache", "cpp_wrapper_src"
_MARKS_OF_WRAPPER = ("AsyncCompile()", "async_compile.wait(", _CPP_WRAPPER)
# A definition ends with a brace at the start of a line; a declaration has none.
_CPP_KERNEL = re.compile(r'^extern "C"\s+void\s+(\w+)\([^;{}]*\)\s*\{.*?^\}', re.MULTILINE | re.DOTALL)
_CPP_LIBRARY_CALL = re.compile(
    r"\b(aoti_torch_(?:cpu|cuda|xpu|mps)_\w+|aoti_torch_proxy_executor_call_function)\("
)
# "0/1: self.phase == 0   # if self.phase == 0:  # repo/net.py:7 in forward (HINT: ...)"
_COMPILE_ID = re.compile(r"^[\s-]*\d+/\d+(?:_\d+)?:\s*")
_PLACE = re.compile(r"([^/\\\s]+):(\d+) in (\S+)")
_FUSED = re.compile(r"(?:^|_)fused_(\D.*?)(?:_\d+)?$")
_CPP_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PYTHON_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_NORMAL = (
    (re.compile(r"([\"'<])/[^\"'<>\n]*([\"'>])"), r"\1path\2"),
    (re.compile(r"\b(?:[0-9a-f]{32,64}|c[a-z2-7]{51})\b"), "hash"),
    (re.compile(r"\b0x[0-9a-f]{9,16}\b"), "address"),
    (re.compile(r"[ \t]+(?=\n)|\n(?=\n)"), ""),
)


@dataclass
class Kernel:
    """A generated kernel: its source and how often its graph calls it."""

    name: str
    kind: str  # cpp, triton ...
    source: str
    graph: int  # which of the graphs, in the order in which they were compiled
    calls: int


@dataclass
class Code:
    """The generated code of a case: kernels, calls of library operators, and the wrappers' own text."""

    kernels: list[Kernel] = field(default_factory=list)
    library_calls: Counter[str] = field(default_factory=Counter)
    wrappers: list[str] = field(default_factory=list)  # without imports and the sources of kernels
    size_bytes: int = 0


def parse(wrappers: Iterable[str]) -> Code:
    """Take the wrappers that inductor wrote apart, in the order in which they were compiled."""
    code = Code()
    for graph, text in enumerate(wrappers):
        code.size_bytes += len(text.encode("utf-8", "replace"))
        benchmark = _BENCHMARK.search(text)
        text = text[: benchmark.start()] if benchmark else text
        if _CPP_WRAPPER in text:
            _add_cpp_wrapper(code, graph, text)
            continue
        starts = list(_DEFINITION.finditer(text))
        end = _DEFINITIONS_END.search(text, starts[-1].end() if starts else 0)
        bounds = [
            *(match.start() for match in starts[1:]),
            end.start() if end else len(text) if starts else 0,
        ]
        body = text[bounds[-1] :]
        for match, bound in zip(starts, bounds):
            source = text[match.end() : bound]
            closed = source.rfind("''')")  # comments on the next kernel may follow
            name, kind = match.group(1), match.group(2)
            calls = len(re.findall(rf"\b{name}(?:\.run)?\(", body))
            kind = {"cpp_pybinding": "cpp"}.get(kind, kind)
            source = source[: closed + 3] if closed >= 0 else source.rstrip()
            code.kernels.append(Kernel(name, kind, source, graph, calls))
        code.wrappers.append(body)
        code.library_calls.update(_LIBRARY_CALL.findall(_PYTHON_COMMENT.sub(r"\1", body)))
    return code


def _add_cpp_wrapper(code: Code, graph: int, text: str) -> None:
    """Take a wrapper in C++ apart (inductor's setting cpp_wrapper): its kernels are functions beside it."""
    definitions = list(_CPP_KERNEL.finditer(text))
    body = text[text.find(_CPP_SOURCE) :]
    for match in definitions:
        body = body.replace(match.group(), "")
    for match in definitions:
        name = match.group(1)
        calls = len(re.findall(rf"^\s+{name}\(", body, re.MULTILINE))
        code.kernels.append(Kernel(name, "cpp", match.group(), graph, calls))
    body = _CPP_COMMENT.sub("", body)
    code.wrappers.append(body)
    code.library_calls.update(_CPP_LIBRARY_CALL.findall(body))


def fingerprint(texts: Iterable[str], key: str) -> str:
    """A digest of texts and of what they were generated for."""
    digest = hashlib.sha256(f"{VERSION}\n{key}".encode())
    for text in texts:
        digest.update(b"\0" + text.encode("utf-8", "replace"))
    return digest.hexdigest()[:16]


def normal_kernel(kernel: Kernel) -> str:
    """The source without comments, paths, hashes and the kernel's own name."""
    comment = _CPP_COMMENT if kernel.kind == "cpp" else _PYTHON_COMMENT
    source = re.sub(rf"\b{kernel.name}\b", "kernel", kernel.source)
    return normal(comment.sub(lambda match: match.group(1) if match.re.groups else "", source))


def normal(text: str) -> str:
    """The text without paths, hashes, addresses and empty lines."""
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text.strip()


def figures(code: Code, isa: Optional[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Kernels, calls and fingerprints, as they are recorded."""
    key = f"{isa}\n{json.dumps(settings, sort_keys=True, default=str)}"
    names = _operator_names() if code.kernels else frozenset()
    kernels, prints, texts = [], [], []
    for kernel in code.kernels:
        text = normal_kernel(kernel)
        prints.append(fingerprint([kernel.kind, text], key))
        texts.append(fingerprint([kernel.kind, text], ""))
        kernels.append(
            {
                "name": kernel.name,
                "kind": kernel.kind,
                "operators": fused_operators(kernel.name, names),
                "graph": kernel.graph,
                "calls": kernel.calls,
                "bytes": len(kernel.source.encode("utf-8", "replace")),
                "fingerprint": prints[-1],
                "text": texts[-1],
            }
        )
    wrappers = sorted(normal(_PYTHON_COMMENT.sub(r"\1", wrapper)) for wrapper in code.wrappers)
    return {
        "kernels": kernels,
        "kernel_calls": sum(kernel.calls for kernel in code.kernels),
        "library_calls": dict(sorted(code.library_calls.items())),
        "code_bytes": code.size_bytes,
        "isa": isa,
        "settings": settings,
        "version": VERSION,
        "fingerprint": fingerprint([*sorted(prints), *wrappers], key) if code.wrappers else None,
        "text": fingerprint([*sorted(texts), *wrappers], "") if code.wrappers else None,
    }


def fused_operators(name: str, names: Iterable[str]) -> list[str]:
    """The operators in a kernel's name: add and native_layer_norm of cpp_fused_add_native_layer_norm_0.

    `names` are all operators. What is none of them stays one word.
    """
    match = _FUSED.search(name)
    if not match:
        return []
    words, names = match.group(1).split("_"), frozenset(names)
    # The best split of the first k words: as few words as possible that are no operator, then as few parts.
    best: list[tuple[int, int, list[str]]] = [(0, 0, [])]
    for end in range(1, len(words) + 1):
        options = []
        for start in range(end):
            part = "_".join(words[start:end])
            unknown, parts, before = best[start]
            if part in names:
                options.append((unknown, parts + 1, [*before, part]))
            elif start == end - 1:
                options.append((unknown + 1, parts + 1, [*before, part]))
        best.append(min(options, key=lambda option: option[:2]))
    return [part for part in best[-1][2] if part]


def _operator_names() -> frozenset[str]:
    """The names of ATen's and prims' operators, without overload; empty where they are not listed."""
    import torch

    try:
        every = torch._C._dispatch_get_all_op_names()
    except (AttributeError, RuntimeError):
        return frozenset()
    parts = (name.partition("::") for name in every)
    return frozenset(name.partition(".")[0] for space, _, name in parts if space in ("aten", "prims"))


def is_wrapper(text: str) -> bool:
    """Whether a module that inductor has written is a wrapper of the model's code.

    Each kernel of Triton has a file of its own beside the wrapper. That of a candidate which autotuning timed
    has a `call`, too, but only a wrapper compiles kernels.
    """
    return any(mark in text for mark in _MARKS_OF_WRAPPER)


def wrapper_sources(folder: str) -> Optional[list[str]]:
    """The wrappers in inductor's cache folder, oldest first; None where there is more code than is read."""
    found = []
    for below, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(below, name)
                facts = os.stat(path)
                found.append((facts.st_mtime_ns, path, facts.st_size))
    if sum(size for _, _, size in found) > _MOST_BYTES:
        return None
    texts = []
    for _, path, _ in sorted(found):
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if is_wrapper(text):
            texts.append(text)
    return texts


def packed_text(text: str) -> str:
    """A text as it is handed over: compressed, in base64."""
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode("ascii")


def packed(sources: Iterable[str], folder: str) -> Optional[list[str]]:
    """The code as it is handed over: compressed, in base64; None where that is too much.

    Paths below the case's own folder and the user's home are shortened, so that unchanged code is equal.
    """
    home = os.path.expanduser("~")
    texts = []
    for source in sources:
        text = source.replace(folder, "cache")
        if len(home) > 1:
            text = text.replace(home + os.sep, "~" + os.sep)
        texts.append(packed_text(text))
    return texts if sum(map(len, texts)) <= _MOST_KEPT else None


def settings_of(job: Any) -> dict[str, Any]:
    """The settings of the back end that decide which code it generates."""
    return {
        "backend": job.case.backend,
        "mode": job.compile_mode,
        "dynamic": job.case.dynamic,
        "config": job.inductor_config,
    }


# The keys of a suite that act in a step of one scenario only.
_KEYS_OF_SCENARIO = {
    "training": ("optimizer", "loss"),
    "generation": ("new_tokens", "cache"),
    "sizes": ("sizes", "sizes_of"),
}


def model_keys_of(job: Any) -> dict[str, Any]:
    """How the model is built and stepped, by the keys of its suite, without the place of its files."""
    is_file = job.loader == "python"
    of_step = {name: getattr(job, name) for name in _KEYS_OF_SCENARIO.get(job.case.scenario, ())}
    return {
        "loader": job.loader,
        "target": os.path.basename(job.target) if is_file else job.target,
        "config": {key: value for key, value in job.config.items() if key != "checkout"},
        "inputs": job.inputs,
        "variant": job.variant,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in of_step.items()},
    }


def of_case(
    folder: str, frames: Frames, isa: Optional[str], settings: dict[str, Any], keep_code: bool = False
) -> tuple[dict[str, Any], Optional[list[str]], list[str]]:
    """The structure after compiling, the code if it is kept, and notes on what this torch does not tell.

    It never fails a case.
    """
    notes = []
    code: Optional[list[str]] = None
    try:
        graphs = frames.figures()
        if frames.records() is None:
            notes.append("this torch keeps no records of compilations: guards, nodes, recompiles are unknown")
        elif not frames.knows_reasons():
            notes.append("this torch does not record why it compiles again: failed guards are unknown")
    except Exception as error:
        graphs = {}
        notes.append(
            f"dynamo's records of compilations are unreadable: {type(error).__name__}: {error}"[:300]
        )
    try:
        sources = wrapper_sources(folder)
        if sources is None:
            notes.append(f"more than {_MOST_BYTES >> 20} MiB of generated code: kernels were not counted")
        elif sources:
            graphs |= figures(parse(sources), isa, settings)
            if keep_code:
                code = packed(sources, folder)
                if code is None:
                    notes.append(f"the generated code is over {_MOST_KEPT >> 20} MiB: it was not kept")
    except Exception as error:
        notes.append(f"the generated code is unreadable: {type(error).__name__}: {error}"[:300])
    return graphs, code, notes


class Frames:
    """What dynamo has compiled since this was made: guards, graph nodes, recompiles, frames given up."""

    def __init__(self) -> None:
        self._uncounted = 0
        self._uncounted_guards: Counter[str] = Counter()
        utils = _dynamo_utils()
        with contextlib.suppress(AttributeError):
            utils.set_compilation_metrics_limit(_MOST_FRAMES)
        with contextlib.suppress(AttributeError):
            utils.clear_compilation_metrics()

    def records(self) -> Optional[list[Any]]:
        """Dynamo's records of compilations of frames; None in a torch without them."""
        try:
            every = _dynamo_utils().get_compilation_metrics()
        except AttributeError:
            return None
        return [record for record in every if getattr(record, "is_forward", None) is not False]

    def recompiles(self) -> Optional[int]:
        """How often a frame was compiled again because no code of before was valid."""
        records = self.records()
        return None if records is None else sum(map(_is_recompile, records)) - self._uncounted

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leave out the recompiles of the block, which may be within another such block."""
        before, guards = self.recompiles() or 0, self._guards()
        try:
            yield
        finally:
            self._uncounted += (self.recompiles() or 0) - before
            self._uncounted_guards += self._guards() - guards

    def knows_reasons(self) -> bool:
        """Whether this torch records which guard failed; True before anything was compiled."""
        return all(hasattr(record, "recompile_reason") for record in self.records() or ())

    def failed_guards(self) -> Optional[dict[str, int]]:
        """How often each guard failed, so that code was compiled again; None in a torch without reasons."""
        if self.records() is None or not self.knows_reasons():
            return None
        return dict(self._guards().most_common(_MOST_REASONS))

    def _guards(self) -> Counter[str]:
        """How often each guard failed, without what is not counted."""
        records = filter(_is_recompile, self.records() or ())
        reasons = (getattr(record, "recompile_reason", None) for record in records)
        return Counter(failed_guard(str(reason)) for reason in reasons if reason) - self._uncounted_guards

    def failures(self) -> dict[str, Any]:
        """The frames that dynamo gave up, and the guards that failed."""
        return {"given_up": self.given_up(), "guards": self.failed_guards()}

    def given_up(self) -> Optional[dict[str, int]]:
        """The frames that dynamo gave up, by reason."""
        records = self.records()
        if records is None:
            return None
        return dict(Counter(filter(None, map(_why_given_up, records))).most_common(_MOST_REASONS))

    def figures(self) -> dict[str, Any]:
        """Guards, nodes and operators of the graphs, and the frames that dynamo gave up, by reason."""
        records = self.records()
        if records is None:
            return {"guards": None, "graph_nodes": None, "graph_operators": None, "frames_given_up": None}
        return {
            "guards": _total(records, "guard_count"),
            "graph_nodes": _total(records, "graph_node_count"),
            "graph_operators": _total(records, "graph_op_count"),
            "frames_given_up": self.given_up(),
        }


def _dynamo_utils() -> Any:
    from torch._dynamo import utils

    return utils


def _is_recompile(record: Any) -> bool:
    return bool(getattr(record, "cache_size", 0)) and not getattr(record, "fail_type", None)


def failed_guard(reason: str) -> str:
    """The guard of a reason for compiling again, with its place in the user's code but not its text."""
    line = next((line for line in reason.splitlines() if line.strip()), "")
    guard, *comments = re.split(r"\s+# ", _COMPILE_ID.sub("", line).partition("(HINT:")[0])
    place = next(filter(None, map(_PLACE.search, reversed(comments))), None)
    where = f" ({place[1]}:{place[2]} in {place[3]})" if place else ""
    return f"{' '.join(guard.split())[:_REASON_CHARS]}{where}"


def _why_given_up(record: Any) -> Optional[str]:
    kind = getattr(record, "fail_type", None)
    if not kind:
        return None
    reason = " ".join(str(getattr(record, "fail_reason", None) or "").split())
    return f"{str(kind).rpartition('.')[2].rstrip(chr(39) + '>')}: {reason}"[:_REASON_CHARS]


def _total(records: Iterable[Any], name: str) -> Optional[int]:
    """Add up a field of all records; None if a record does not have it."""
    values = [getattr(record, name, None) for record in records]
    return None if None in values else sum(value for value in values if value is not None)

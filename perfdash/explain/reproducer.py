"""Write a script that shows a slower kernel or operator of two builds, with nothing but torch.

The script contains the generated code of both builds, the shapes and strides of their tensors, and the calls
that differ. The values of whole numbers, which may be indices, lie in a file beside it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from textwrap import wrap
from typing import Any

from perfdash.child_environment import without_secrets
from perfdash.errors import UsageError
from perfdash.explain.profile_comparison import Pair, ProfileRow, SideComparison
from perfdash.explain.profiling import CONSTANTS
from perfdash.files import write as save

SCRIPT = "reproduce.py"
_WIDTH = 100
_LIMIT_S = 1800.0  # of a script that compiles one small graph
_OPERATOR = re.compile(r"(?:torch\.ops\.)?(\w+)\.")
_OF_TORCH = {
    "aten",
    "prims",
    "inductor",
    "mkldnn",
    "onednn",
    "mkl",
    "quantized",
    "_quantized",
    "_c10d_functional",
}
_GRAPH = re.compile(r" of graph \d+$")

# The script without its data: a module of the worker, which also needs only torch.
_SOURCE = Path(__file__).resolve().parents[1] / "worker" / "reproduce_script.py"
_ACCURACY = _SOURCE.with_name("accuracy_script.py")
_WRONG = ": wrong:"  # what the latter prints of a wrong output
_EMPTY = re.compile(r"^(OLD|NEW) = \{.*\}$", re.MULTILINE)


def write(
    folder: Path,
    side: SideComparison,
    pair: Pair,
    profiles: tuple[Path, Path],
    variables: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Path:
    """Write reproduce.py for the row that changed most, and the constants that it needs.

    `profiles`: the folders of the old and the new profile, each with its constants: a tensor's number is its
    build's own. `variables`: under which the builds ran. Raises UsageError where no kernel or operator
    changed clearly, or where a script cannot repeat its calls.
    """
    row = largest(side)
    old, new = pair
    sides = [
        {"env": dict(env), **_side(profile, side.side, labels, where)}
        for profile, labels, where, env in zip(
            pair, (row.old, row.new), ("old", "new"), variables, strict=True
        )
    ]
    title = (
        f"{row.name}: {row.old_ms:.4g} ms a call of the model with torch {old['torch']}, "
        f"{row.new_ms:.4g} ms with torch {new['torch']}."
    )
    data = dict(zip(("OLD", "NEW"), map(_literal, sides), strict=True))
    text = _SOURCE.read_text().replace("TITLE", _docstring("\n".join(wrap(title, _WIDTH))), 1)
    text = text.replace("THREADS = 1", f"THREADS = {int(new['threads'])}", 1)
    text = _EMPTY.sub(lambda match: f"{match[1]} = {data[match[1]]}", text)
    folder.mkdir(parents=True, exist_ok=True)
    for where, side_data, profile_folder in zip(("old", "new"), sides, profiles, strict=True):
        if any(tensor[5] for tensor in side_data["tensors"]):
            shutil.copy(profile_folder / CONSTANTS, folder / f"constants-{where}.pt")
    path = folder / SCRIPT
    save(path, text)
    return path


def write_accuracy(
    folder: Path, found: Mapping[str, Any], inputs: Path, variables: Mapping[str, str]
) -> Path:
    """Write reproduce.py for a subgraph that is compiled wrongly, with its inputs beside it.

    `found`: what the worker found (worker.failing_subgraph); `inputs`: the file of its inputs;
    `variables`: under which it was compiled. Raises UsageError for operators of other packages than torch.
    """
    for name in found["operators"]:
        _refuse_foreign(name, name)
    place = found["place"]
    operators = ", ".join(found["operators"])
    title = (
        f"{len(found['operators'])} of {place['operators']} operators give wrong outputs under torch "
        f"{found['torch']}: {operators}"
    )
    values = {
        "THREADS, TOLERANCE, FACTOR, MODE, DYNAMIC = 1, 1e-3, 2.0, None, None": (
            f"THREADS, TOLERANCE, FACTOR, MODE, DYNAMIC = {found['threads']}, {found['tolerance']}, "
            f"{found['factor']}, {found['mode']!r}, {found['dynamic']!r}"
        ),
        "environ.update({})": f"environ.update({dict(variables)!r})",
        "TF32 = None": f"TF32 = {found['tf32']}",
        "CONFIG = {}": f"CONFIG = {found['config']!r}",
        'CODE = ""': f'CODE = r"""{_raw(found["code"])}"""',
        "TITLE": _docstring("\n".join(wrap(title, _WIDTH))),
    }
    text = _ACCURACY.read_text()
    for place_holder, value in values.items():
        text = text.replace(place_holder, value, 1)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(inputs, folder / inputs.name)
    path = folder / SCRIPT
    save(path, text)
    return path


def shows_it(script: Path, python: str, variables: Mapping[str, str]) -> bool:
    """Whether a script of wrong outputs ends with 1 and names a wrong one. It may compile for minutes.

    A script that fails ends with 1, too, and names none. Raises UsageError where it does not end.
    """
    env = {**without_secrets(os.environ), **variables}
    try:
        done = subprocess.run(
            [python, str(script)], env=env, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"{script} did not end within {_LIMIT_S / 60:.0f} minutes, so whether it shows the wrong outputs "
            f"is not known. Run it yourself: {shlex.join([python, str(script)])}"
        ) from error
    return done.returncode == 1 and _WRONG in done.stdout


def _refuse_foreign(name: str, label: str) -> None:
    """Raise UsageError for an operator that is not torch's: aten.relu.default, torch.ops.mylib.f."""
    package = _OPERATOR.match(name)
    if package and package[1] not in _OF_TORCH:
        raise UsageError(
            f"{label} is an operator of {package[1]}, not of torch: a script with only torch has none"
        )


def _docstring(text: str) -> str:
    return text.replace('"', "'").replace("\\", "/")


def largest(side: SideComparison) -> ProfileRow:
    """The named row with the largest difference that both builds have. Raises UsageError without one."""
    if not side.named:
        where = side.rest.name if side.rest.change_ms.is_clear else "no part of the call"
        raise UsageError(
            f"no kernel or operator of the {side.side} call changed clearly ({where} did): there is no "
            "script to write. More pairs (--pairs) narrow the intervals."
        )
    row = next((row for row in side.named if row.old and row.new), None)
    if row is None:
        names = ", ".join(row.name for row in side.named[:3])
        raise UsageError(
            f"{names}: the other build has no counterpart, so there is nothing to time beside it"
        )
    return row


def _side(profile: Mapping[str, Any], side: str, labels: Sequence[str], where: str) -> dict[str, Any]:
    """What the script needs of one build: {tf32, config, kernels, tensors, calls}."""
    data = profile["sides"][side]
    calls = {call["label"]: call.get("invocation") for call in data["calls"]}
    numbers: dict[int, int] = {}
    lines, kernels = [], []
    for label in labels:
        invocation = calls.get(label)
        if invocation is None:
            raise UsageError(f"the {where} build did not say how it calls {label}: no script can repeat it")
        kernel = data["kernels"].get(invocation["name"])
        if kernel is not None and kernel["kind"] != "cpp":
            raise UsageError(
                f"{label} is a kernel of {kernel['kind']}: only C++ kernels are reproduced so far"
            )
        name = _function(invocation["name"], kernel)
        if name.startswith("torch.ops."):
            _refuse_foreign(name, label)
        if kernel is not None:
            kernels.append(re.sub(rf"^{kernel['name']} =", f"{name} =", kernel["code"]))
        arguments = [_argument(value, numbers, label) for value in invocation["arguments"]]
        arguments += [
            f"{key}={_argument(value, numbers, label)}" for key, value in invocation["keywords"].items()
        ]
        lines.append(f"{name}({', '.join(arguments)})")
    tensors = []
    for number in numbers:
        tensor = data["tensors"][number]
        dtype = str(tensor["dtype"]).removeprefix("torch.")
        values = (side, str(number)) if tensor.get("exact") else None
        tensors.append(
            (tensor["shape"], tensor["stride"], dtype, tensor["device"], tensor["elements"], values)
        )
    config = profile["settings"].get("config") or {} if kernels else {}
    tf32 = profile["settings"]["tf32"]
    return {"tf32": tf32, "config": config, "kernels": kernels, "tensors": tensors, "calls": lines}


def _function(name: str, kernel: Mapping[str, Any] | None) -> str:
    """How the script calls it: a kernel by a name of its own, an operator below torch.ops."""
    if kernel is not None:
        graph = _GRAPH.search(name)
        return str(kernel["name"]) + (graph[0].replace(" ", "_") if graph else "")
    if name.startswith(("extern_kernels.", "torch.ops.")):
        return name
    return f"torch.ops.{name.replace('inductor_ops.', 'inductor.', 1)}"


def _argument(value: Mapping[str, Any], numbers: dict[int, int], label: str) -> str:
    if "tensor" in value:
        return f"t[{numbers.setdefault(value['tensor'], len(numbers))}]"
    if "list" in value:
        return f"[{', '.join(_argument(item, numbers, label) for item in value['list'])}]"
    if "code" in value:
        return str(value["code"])
    if "value" in value:
        return repr(value["value"])
    raise UsageError(
        f"{label} takes {value.get('opaque', 'something')}, which a script cannot make from its shape"
    )


def _literal(side: Mapping[str, Any]) -> str:
    """A side as Python, its code as raw text."""
    kernels = "".join(f'    r"""{_raw(code)}""",\n' for code in side["kernels"])
    tensors = "".join(f"    {tensor!r},\n" for tensor in side["tensors"])
    calls = "".join(f"    {call!r},\n" for call in side["calls"])
    config = pformat(side["config"], width=_WIDTH)
    settings = f'"env": {side["env"]!r}, "tf32": {side["tf32"]}, "config": {config}'
    return f'{{{settings}, "kernels": [\n{kernels}], "tensors": [\n{tensors}], "calls": [\n{calls}]}}'


def _raw(code: str) -> str:
    if '"""' in code or code.endswith(('"', "\\")):
        raise UsageError("the generated code contains three quotes: it cannot be put into a script")
    return code

"""Rewrites a ``.cu`` for the host compiler, line for line; ``emulated_cuda.h`` defines whatever needs no rewriting."""

from __future__ import annotations

import re
from collections.abc import Iterable

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_TYPE = r"(?:__align__|alignas)?(?:\s*\(\s*\d+\s*\)\s*)?((?:(?:unsigned|signed|const|volatile)\s+)*[\w:]+(?:\s*\*)?)"
_DYNAMIC = re.compile(rf"\bextern\s+__shared__\s+{_TYPE}\s+(\w+)\s*\[\s*\]\s*;")
_STATIC = re.compile(rf"\b__shared__\s+{_TYPE}\s+([^;={{}}]+);")
_COMMA = re.compile(r",(?![^\[]*\])")  # between declarators, not inside an extent
_SHARED = re.compile(r"\b__shared__\b")  # what the two leave
_REFUSAL = 'static_assert(false, "the emulation takes __shared__ TYPE name[extent]..., other[extent]...;");'
_DECLARATOR = re.compile(r"\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)$")
_UNROLL = re.compile(r"^([ \t]*)#pragma[ \t]+unroll[ \t]*(\d*)[ \t]*$", re.MULTILINE)
_FULL_UNROLL = (
    "64"  # CUDA's bare pragma means "all"; GCC wants a number and stops at the trip count
)


def translate(name: str, text: str, kernels: Iterable[str] = ()) -> str:
    """``text`` of the file ``name`` for the host compiler, exporting ``kernels``; line numbers are kept."""
    text = _COMMENT.sub(lambda match: " " + "\n" * match[0].count("\n"), text)
    text = _DYNAMIC.sub(r"auto* \2 = reinterpret_cast<\1*>(emulation::state.dynamic_shared);", text)
    text = _STATIC.sub(_static_shared, text)
    text = _SHARED.sub(_REFUSAL, text)
    text = _UNROLL.sub(
        lambda match: f"{match[1]}#pragma GCC unroll {match[2] or _FULL_UNROLL}", text
    )
    exports = "".join(f"EMULATION_KERNEL({kernel})\n" for kernel in kernels)
    return f'#line 1 "{name}"\n{text}\n{exports}'


def _static_shared(match: re.Match[str]) -> str:
    """``__shared__ float a[4], b;`` -> a reference into the block's memory for each variable."""
    element = match[1]
    rewritten = []
    for declarator in _COMMA.split(match[2]):
        parts = _DECLARATOR.match(declarator)
        if parts is None:
            return match[0]
        name, extents = parts.groups()
        rewritten.append(
            f'static emulation::Shared<{element}{extents}> {name}_shared{{"{name}"}}; '
            f"auto& {name} = {name}_shared.get();"
        )
    return " ".join(rewritten) + "\n" * match[0].count("\n")

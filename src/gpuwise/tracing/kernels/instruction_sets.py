"""The instruction sets that oneDNN uses on this CPU."""

from __future__ import annotations

import os
from functools import cache

from gpuwise.hardware.detect.cpu import detect_cpu

# Values of ONEDNN_MAX_CPU_ISA without 512-bit vectors.
_NARROW = {"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"}
_WITHOUT_BF16 = {"AVX512_CORE", "AVX512_CORE_VNNI"}


@cache
def vector_floats() -> int:
    """fp32 numbers in the vectors that oneDNN computes with here: 16 with AVX-512, else 8."""
    wide = {"avx512", "avx512-halved"} & set(detect_cpu().flags)
    return 16 if wide and _limit() not in _NARROW else 8


@cache
def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bfloat16 with instructions for it (AVX-512 BF16 or AMX)."""
    has = bool({"avx512-bf16", "amx-bf16"} & set(detect_cpu().flags))
    return has and vector_floats() == 16 and _limit() not in _WITHOUT_BF16


@cache
def has_tiles() -> bool:
    """Whether oneDNN multiplies bfloat16 on AMX's tiles here."""
    limit = _limit()
    allowed = "AMX" in limit or limit in ("", "DEFAULT", "ALL") or limit.startswith("AVX10_2")
    return allowed and vector_floats() == 16 and "amx-bf16" in detect_cpu().flags


def _limit() -> str:
    """The instruction set that the user lets oneDNN use at most; "" for all (oneDNN's "CPU dispatcher control")."""
    return (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "").upper()

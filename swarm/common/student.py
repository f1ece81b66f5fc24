"""How far a mean of few values may be off."""

from __future__ import annotations

_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t; beyond 30 degrees of freedom the normal one."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96

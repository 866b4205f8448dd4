"""Writes python/wtconv/golden.json, what wtconv.self_check() compares with: the plain composition in float64.

Usage: python scripts/make_golden.py
"""

import json
from pathlib import Path

from wtconv import general, info, reference

CASES = [
    {"seed": 1, "b": 2, "c": 2, "h": 5, "w": 7, "k": 3, "levels": 2, "stride": 1},
    {"seed": 2, "b": 1, "c": 3, "h": 8, "w": 8, "k": 5, "levels": 1, "stride": 2},
    {"seed": 3, "b": 1, "c": 1, "h": 6, "w": 3, "k": 4, "levels": 0, "stride": 1},
    {"seed": 4, "b": 3, "c": 1, "h": 9, "w": 4, "k": 2, "levels": 3, "stride": 3},
]


def golden(case: dict) -> list[list[float]]:
    filters = general.haar_filters(case["c"], 2)
    results = info.evaluate(*info.golden_input(case), lambda *p: reference.wtconv2d(*p, case["stride"], *filters))
    return [[float(v) for v in r.flatten()] for r in results]


def main() -> None:
    for case in CASES:
        case["golden"] = golden(case)
    path = Path(info.__file__).with_name("golden.json")
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in CASES)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()

"""Results of benchmarks: a file that survives interruptions, figures that sum up repeats, tables. No torch here."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any


class Store:
    """Measurements as JSON lines, each found again by its key, so that a rerun measures only what is missing.

    A line that a kill cut short is dropped. Every run adds a line about itself (`about`) before its first measurement, and
    measurements carry its number. Another device is another store; another commit is recorded and left to the reader.
    """

    def __init__(self, path: Path, about: dict[str, Any], fresh: bool = False):
        self.path, self.about = path, about
        self.runs: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self._found: dict[str, dict[str, Any]] = {}
        self._announced = False
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        if path.exists():
            self._load()
        if self.runs and about and self.runs[0]["device"] != about["device"]:
            raise SystemExit(
                f"{path} holds results of {self.runs[0]['device']!r}, this is {about['device']!r}: take another --out, "
                "or --fresh"
            )

    def _load(self) -> None:
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            with open(self.path, "r+b") as file:
                file.truncate(len(whole))
        for line in whole.decode().splitlines():
            record = json.loads(line)
            if "about" in record:
                self.runs.append(record["about"])
            else:
                self._keep(record)

    def _keep(self, record: dict[str, Any]) -> None:
        self.results.append(record)
        self._found[_name(record["key"])] = record

    def require_results(self) -> None:
        if not self.results:
            raise SystemExit(f"{self.path} holds no results")

    def __contains__(self, key: dict[str, Any]) -> bool:
        return _name(key) in self._found

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        return self._found.get(_name(key))

    def add(self, key: dict[str, Any], **values: Any) -> None:
        with open(self.path, "a") as file:
            if not self._announced:
                self._announced = True
                self.runs.append(self.about)
                file.write(json.dumps({"about": self.about}) + "\n")
            record = {"key": key, "run": len(self.runs) - 1, **values}
            file.write(json.dumps(record) + "\n")
        self._keep(record)


def _name(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}  # bytes of an element, by a case's type


def parse_case(name: str) -> tuple[tuple[int, ...], str]:
    """((batch, channels, height, width, kernel, levels), type) of a case such as n8c64h256w256k5l3_f16; more may follow."""
    found = re.match(r"n(\d+)c(\d+)h(\d+)w(\d+)k(\d+)l(\d+)_(b?f\d+)", name)
    if not found:
        raise ValueError(f"not a case: {name!r}")
    *shape, dtype = found.groups()
    return tuple(map(int, shape)), dtype


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:4])


def multiply_adds(shape: tuple[int, ...], passes: int) -> float:
    """Of the filters alone; a pass is the forward, the input gradient or the weight gradient."""
    kernel, levels = shape[4:]
    return passes * elements(shape) * kernel**2 * (1 + sum(4.0 ** (1 - level) for level in range(1, levels + 1)))


def summary(times: list[float]) -> dict[str, float]:
    """Median, quartiles, extremes."""
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {"median": median, "q1": q1, "q3": q3, "min": min(times), "max": max(times), "rounds": len(times)}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def about_runs(runs: list[dict[str, Any]]) -> str:
    """Who measured, and how: a line for each different run, in Markdown."""
    lines = []
    for run in runs:
        versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
        line = f"- `{run['command']}`, commit {run['commit']}, {run['device']}, {versions}"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)

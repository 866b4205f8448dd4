"""Prints the folder of the torch package of this interpreter, without importing it.

Under pip's build isolation sys.path hides the environment's packages, sysconfig's paths do not: both are searched, so
that an installed torch is used and another one is not downloaded for its headers. One that is too old is passed over.
"""

import os
import re
import sys
import sysconfig

OLDEST = (2, 11)


def find_torch() -> str:
    candidates = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for folder in dict.fromkeys(candidates):
        root = os.path.join(folder, "torch")
        if os.path.exists(os.path.join(root, "include", "torch", "csrc", "stable", "ops.h")) and _is_new_enough(root):
            return root
    return ""


def _is_new_enough(root: str) -> bool:
    try:
        with open(os.path.join(root, "version.py"), encoding="utf-8") as file:
            found = re.search(r"__version__ = ['\"]((\d+)\.(\d+)[^'\"]*)", file.read())
    except OSError:
        found = None
    if found and tuple(map(int, found.groups()[1:])) >= OLDEST:
        return True
    version = found[1] if found else "without a version"
    print(f"wtconv: torch {version} in {root} is passed over, it must be 2.11 or later", file=sys.stderr)
    return False


if __name__ == "__main__":
    print(find_torch())

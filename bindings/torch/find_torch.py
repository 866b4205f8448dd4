"""Prints the folder of the torch package of this interpreter, without importing it.

Under pip's build isolation sys.path hides the environment's packages, sysconfig's paths do not: both are searched, so
that an installed torch is used and another one is not downloaded for its headers.
"""

import os
import sys
import sysconfig


def find_torch() -> str:
    candidates = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    for folder in candidates:
        root = os.path.join(folder, "torch")
        if os.path.exists(os.path.join(root, "include", "torch", "csrc", "stable", "ops.h")):
            return root
    return ""


if __name__ == "__main__":
    print(find_torch())

"""Promises about the source tree, one function each: `python3 source.py NAME [ARGUMENT]`. Exit 1 lists what breaks it."""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = {".hpp", ".h", ".cpp", ".cu", ".cuh"}
SKIPPED = 77  # told to CTest


def tracked(*folders):
    """Files git knows or would add, below the given folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / n for n in sorted(set(names)) if n and (ROOT / n).is_file()]


def sources(*folders):
    return [f for f in tracked(*folders) if f.suffix in CPP]


def includes(path):
    """(line number, included name) of a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*[<"]([^">]+)[">]', line):
            yield number, match[1]


def layers():
    """Which folder may include which. The layers are those of HACKING.md."""
    backends = [d.name for d in (ROOT / "src").iterdir() if d.is_dir() and d.name != "core"]
    for path in sources("include", "src", "tools", "bench", "tests"):
        top, *rest = path.relative_to(ROOT).parts
        own = rest[0] if top == "src" else None
        for number, name in includes(path):
            where = f"{path.relative_to(ROOT)}:{number}: includes {name}"
            first = name.split("/")[0]
            if top == "include" and "/" in name and first != "wtconv":
                yield f"{where}: a public header includes only the standard library and public headers"
            if top == "src" and first in backends and first != own:
                yield f"{where}: {own} may not see the insides of {first}"
            if re.match(r"(torch|ATen|c10)/", name):
                yield f"{where}: only bindings/torch knows torch"
            if own != "cuda" and re.match(r"(cuda|cublas|cudnn|cub/|thrust/|nv/)", name):
                yield f"{where}: only src/cuda knows CUDA"


def exports():
    """Public headers open the namespace with WTCONV_EXPORT, or a shared library hides what they declare."""
    for path in sources("include"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"namespace wtconv\b", line):
                yield f"{path.relative_to(ROOT)}:{number}: write `namespace WTCONV_EXPORT wtconv {{`"


def symbols(library):
    """The core library refers to nothing of torch or CUDA."""
    names = subprocess.run(["nm", "--undefined-only", library], check=True, capture_output=True, text=True).stdout
    for name in sorted({line.split()[-1] for line in names.splitlines() if " U " in line}):
        if re.match(r"_ZNK?(2at|3c10|5torch)|aoti_torch|cuda[A-Z]|cu[A-Z]", name):
            yield f"{library}: needs {name}"


def text():
    """No unfinished marks and no paths of one machine."""
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b|(?<![\w.~$}/])/(work|home|root|Users)/\w")
    for path in tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(lines, 1):
            if match := marks.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: holds {match[0]}"


def files():
    """No file of 2 MiB or more."""
    for path in tracked():
        if path.stat().st_size >= 2 << 20:
            yield f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes"


def format():
    """C++ is as clang-format leaves it. Other versions than the one of scripts/packages format otherwise."""
    wanted = re.search(r"clang-format==(\d+)", (ROOT / "scripts/packages").read_text())[1]
    tool = shutil.which("clang-format")
    found = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout if tool else "none"
    if f"version {wanted}." not in found:
        print(f"needs clang-format {wanted}, found: {found}")
        sys.exit(SKIPPED)
    command = [tool, "--dry-run", "-Werror", *map(str, sources("include", "src", "tools", "bench", "tests", "bindings"))]
    yield from subprocess.run(command, capture_output=True, text=True).stderr.splitlines()


def main():
    name, *arguments = sys.argv[1:]
    broken = list(globals()[name](*arguments))
    print("\n".join(broken))
    sys.exit(bool(broken))


main()

"""Promises about the source tree, one function each: `source.py NAME [ARGUMENT]`. Exit 1 lists what breaks it."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP = {".hpp", ".h", ".cpp", ".cu", ".cuh"}
SKIPPED = 77  # told to CTest


def run(*command):
    """A command's exit code and all it wrote."""
    done = subprocess.run(
        command, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    return done.returncode, done.stdout


def tracked(*folders):
    """Files git knows or would add, below the given folders."""
    code, names = run(
        "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders
    )
    if code:
        sys.exit(names)
    return [ROOT / n for n in sorted(set(names.split("\0"))) if (ROOT / n).is_file()]


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
            named = own == "cuda" or "cuda" in rest or path.name.startswith("cuda_")
            if not named and re.match(r"(cuda|cublas|cudnn|cub/|thrust/|nv/)", name):
                yield f"{where}: only folders and files named after it know CUDA"


def exports():
    """Public headers open the namespace with WTCONV_EXPORT, or a shared library hides what they declare."""
    for path in sources("include"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"namespace wtconv\b", line):
                yield f"{path.relative_to(ROOT)}:{number}: write `namespace WTCONV_EXPORT wtconv {{`"


def symbols(library):
    """The core library refers to nothing of torch or CUDA."""
    code, names = run("nm", "--undefined-only", library)
    if code or " U " not in names:
        yield f"nm {library}: {names}"
    for name in sorted({line.split()[-1] for line in names.splitlines() if " U " in line}):
        if re.match(r"_ZNK?(2at|3c10|5torch)|aoti_torch|cuda[A-Z]|cu[A-Z]", name):
            yield f"{library}: needs {name}"


def text():
    """No unfinished marks and no paths of one machine."""
    marks = "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"])
    marks = re.compile(rf"\b({marks})\b|(?<![\w.~$}}/])/(work|home|root|Users)/\w")
    for path in tracked():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(lines, 1):
            if match := marks.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: holds {match[0]}"


def files():
    """No file of 2 MiB or more, and no compiled program or library."""
    for path in tracked():
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield f"{path.relative_to(ROOT)}: a compiled file"
        if path.stat().st_size >= 2 << 20:
            yield f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes"


def format():
    """C++ and Python are as the formatters of scripts/packages leave them. Other versions format otherwise."""
    python = [f for f in tracked() if f.suffix == ".py"]
    for tool, files, *actions in (
        ("clang-format", sources(), ["--dry-run", "-Werror"]),
        ("ruff", python, ["format", "--diff", "--quiet"], ["check", "--quiet"]),
    ):
        wanted = re.search(rf"{tool}==([\d.]+)", (ROOT / "scripts/packages").read_text())[1]
        found = shutil.which(tool)
        version = run(found, "--version")[1] if found else "none"
        if wanted not in version:
            print(f"needs {tool} {wanted}, found: {version}")
            sys.exit(SKIPPED)
        for action in actions:
            code, output = run(found, *action, *map(str, files))
            if code:
                yield output


def commands(tool):
    """Every command in the documents' code blocks works: `make` targets exist, paths exist, the tool's commands run."""
    for path in tracked("*.md"):
        blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        for line in "".join(blocks).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            where = f"{path.relative_to(ROOT)}: `{line}`"
            if not words:
                continue
            if words[0] == "make":
                if run("make", "-n", *words[1:])[0]:
                    yield f"{where}: make has no such target"
            elif words[0].endswith("/wtconv"):
                # The front page's commands run; the others, which may take long, are looked up.
                arguments = words[1:] if path.name == "README.md" else [words[1], "--help"]
                code, output = run(tool, *arguments)
                if code:
                    yield f"{where}: exit {code}\n{output}"
            for word in words:
                if (
                    re.match(r"(scripts|examples|cases|bench|docs|tools)/[\w./-]+$", word)
                    and not (ROOT / word).exists()
                ):
                    yield f"{where}: there is no {word}"


def links():
    """Every relative link of the documents leads somewhere."""
    for path in tracked("*.md"):
        for target in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", path.read_text()):
            if not (path.parent / target).exists():
                yield f"{path.relative_to(ROOT)}: links to {target}, which does not exist"


def main():
    name, *arguments = sys.argv[1:]
    broken = list(globals()[name](*arguments))
    print("\n".join(broken))
    sys.exit(bool(broken))


main()

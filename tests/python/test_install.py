"""What is installed: the binary's promises, and a wheel that works outside the source tree."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch
import wtconv
from wtconv import _ops

SOURCE = Path(__file__).resolve().parents[2]


def run(*command, **kwargs):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.skipif(not shutil.which("nm"), reason="needs nm")
def test_binary_needs_only_the_stable_abi():
    """No symbol of c10, at or torch's C++: the C functions of the stable ABI alone, those of torch 2.11."""
    needed = run("nm", "-D", "--undefined-only", "-C", _ops.LIBRARY)
    assert not re.findall(r"\b(?:c10|at|torch|caffe2)::.*", needed)
    used = set(re.findall(r"\b(?:aoti_)?torch_\w+", needed))
    assert "torch_library_impl" in used and "aoti_torch_empty_strided" in used
    # Those that came after 2.11, by the guards of the header.
    header = (Path(torch.__file__).parent / "include/torch/csrc/stable/c/shim.h").read_text()
    _, *later = re.split(r"#if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_1[2-9]_0", header)
    assert not used & {name for part in later for name in re.findall(r"\btorch_\w+(?=\()", part)}
    exported = run("nm", "-D", "--defined-only", "-C", _ops.LIBRARY)
    assert not [line for line in exported.splitlines() if " T " in line and "wtconv" not in line], exported


def test_operators_need_no_cuda():
    """CUDA code is in a file of its own, which takes the core from the operators' file: one registry."""
    sections = run("readelf", "-SWd", _ops.LIBRARY)
    assert "nv_fatbin" not in sections and not re.findall(r"NEEDED.*cuda", sections), sections
    plugin = _ops.LIBRARY.with_name("_wtconv_cuda.so")
    if not plugin.exists():
        pytest.skip("this build has no CUDA backend; what concerns the operators' file was tested")
    sections = run("readelf", "-SWd", plugin)
    assert "nv_fatbin" in sections and "NEEDED" in sections
    assert re.findall(r"NEEDED.*\[(_wtconv.*)\]", sections) == ["_wtconv.so"], sections
    assert not re.findall(r"NEEDED.*cuda", sections), sections
    assert " U wtconv::register_backend" in run("nm", "-C", "-D", plugin)
    assert "T wtconv::register_backend" not in run("nm", "-C", plugin)


CUDA_FILES = {
    "none": ("not in this build", ""),
    "not a library": ("cannot be loaded", "no library"),
}


@pytest.mark.parametrize("name", CUDA_FILES)
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch has no CUDA")
def test_a_missing_cuda_backend_is_no_error(tmp_path, name):
    """Import works, show() says why the backend is not there."""
    reason, text = CUDA_FILES[name]
    package = tmp_path / "wtconv"
    shutil.copytree(_ops.LIBRARY.parent, package)
    for source in Path(wtconv.__file__).parent.glob("*.*"):
        if source.suffix in (".py", ".json") and not (package / source.name).exists():
            shutil.copy(source, package)
    (package / "_wtconv_cuda.so").unlink(missing_ok=True)
    if text:
        (package / "_wtconv_cuda.so").write_text(text)
    program = "import wtconv; wtconv.show(); wtconv.self_check()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    out = run(sys.executable, "-c", program, cwd=tmp_path, env=environment)
    assert str(package) in out and "backend cpu agrees" in out
    assert re.search(f"^backend cuda: .*{reason}", out, re.M), out


def test_one_file_for_every_python():
    assert _ops.LIBRARY.name == "_wtconv.so"
    needed = run("ldd", _ops.LIBRARY, env={**os.environ, "LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib")})
    assert "libpython" not in needed and "not found" not in needed, needed


def test_metadata_does_not_import_torch(tmp_path):
    """Metadata and build requirements with a torch that must not be imported, and with none."""
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise SystemExit('torch was imported')")
    program = (
        "import sys; sys.path[:0] = ['bindings/torch']; import backend, find_torch; "
        "find_torch.find_torch = backend.find_torch = (lambda: '') if sys.argv[2] == 'none' else find_torch.find_torch; "
        "print(backend.get_requires_for_build_wheel()); backend.prepare_metadata_for_build_wheel(sys.argv[1])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    for found in ("none", "some"):
        out = run(sys.executable, "-c", program, tmp_path / found, found, cwd=SOURCE, env=environment)
        assert ("torch>=2.11" in out) == (found == "none")
        (metadata,) = (tmp_path / found).glob("*.dist-info/METADATA")
        assert "Requires-Dist: torch>=2.11" in metadata.read_text()


@pytest.mark.parametrize("version, used", [("2.10.0+cu128", False), ("2.11.0a0", True), ("3.0", True), (None, False)])
def test_an_old_torch_is_passed_over(tmp_path, version, used):
    """Its headers would end in a page of compiler errors; without it pip fetches a newer one for the build."""
    (tmp_path / "torch/include/torch/csrc/stable").mkdir(parents=True)
    (tmp_path / "torch/include/torch/csrc/stable/ops.h").touch()
    if version:
        (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n__version__ = {version!r}\n")
    program = "import sys; sys.path[:] = sys.argv[1:]; import find_torch; print(find_torch.find_torch())"
    search = [tmp_path, SOURCE / "bindings/torch", *filter(None, sys.path)]
    done = subprocess.run([sys.executable, "-S", "-c", program, *search], capture_output=True, text=True, check=True)
    assert (done.stdout.strip() == str(tmp_path / "torch")) == used
    assert used or f"torch {version or 'without a version'} in {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    "option, line",
    [
        ("WTCONV_TORCH_ROOT=/nonexistent", "PyTorch >= 2.11 is not installed"),
        ("CMAKE_DISABLE_FIND_PACKAGE_hwy=ON", "apt-get install libhwy-dev"),
    ],
)
def test_a_build_that_cannot_be_says_why(tmp_path, option, line):
    command = ["cmake", "-S", SOURCE, "-B", tmp_path, "-DWTCONV_BUILD_TORCH=ON", "-DWTCONV_CUDA=OFF", f"-D{option}"]
    options = [f"-DWTCONV_BUILD_{part}=OFF" for part in ("TOOL", "TESTS", "BENCH")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and line in " ".join(done.stderr.split()), done.stderr


def test_wheel_in_a_clean_environment(tmp_path):
    """Builds the wheel, installs it into a new environment outside the source tree, runs self_check there.

    The environment sees this one's torch through a .pth file, because another copy is gigabytes to download; nothing
    else of this environment's wtconv: the package must come from the wheel.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    built = SOURCE / "build/python"  # what `make python` left, if it did
    # The long form: Debian's pip has no -C.
    options = [f"--config-settings=build-dir={built if built.exists() else tmp_path / 'build'}"]
    # The CUDA kernels take minutes to compile; they join only where the caller says so, as `make` does.
    environment = {"CMAKE_ARGS": "-DWTCONV_CUDA=OFF", **os.environ}
    run(*pip, "wheel", "-q", "--no-build-isolation", "--no-deps", *options, "-w", tmp_path, SOURCE, env=environment)
    (wheel,) = tmp_path.glob("wtconv-*.whl")
    assert re.fullmatch(r"wtconv-[\d.]+-py3-none-\w+\.whl", wheel.name), "any Python 3"
    cuda = "wtconv/_wtconv_cuda.so" in zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < (30 if cuda else 8) << 20

    home = tmp_path / "clean"
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(*pip, "install", "-q", "--no-deps", "--target", packages, wheel)
    (packages / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    program = """
import time, torch, wtconv
start = time.perf_counter(); wtconv.self_check(); took = time.perf_counter() - start
wtconv.show()
assert wtconv.__file__.startswith(%r), wtconv.__file__
layer = wtconv.WTConv2d(4, 4, wt_levels=2)
layer(torch.randn(2, 4, 9, 8)).sum().backward()
print("self_check took", took)
"""
    out = run(python, "-c", program % str(home), cwd=tmp_path, env=environment)
    assert "agrees with" in out


def test_source_archive(tmp_path):
    """The source archive builds: it holds all that the build needs, and nothing built."""
    run(
        sys.executable,
        "-c",
        "import sys; sys.path[:0] = ['bindings/torch']; import backend; backend.build_sdist(sys.argv[1])",
        tmp_path,
        cwd=SOURCE,
    )
    (archive,) = tmp_path.glob("wtconv-*.tar.gz")
    names = run("tar", "tzf", archive)
    for wanted in ("CMakeLists.txt", "pyproject.toml", "src/core/wtconv.cpp", "bindings/torch/ops.cpp", "LICENSE"):
        assert wanted in names
    assert ".so\n" not in names and "/build/" not in names

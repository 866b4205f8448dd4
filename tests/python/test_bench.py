"""The benchmarks' scripts on tiny shapes: what they measure is there, and they survive interruptions. No time is judged."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from oracle import BACKENDS

pytest.importorskip("tqdm")
BENCH = Path(__file__).parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "paper")]
import results  # noqa: E402


def script(path):
    file = BENCH / f"{path}.py" if (BENCH / f"{path}.py").exists() else BENCH.parent / path
    loader = importlib.machinery.SourceFileLoader(path.replace("/", "_"), str(file))
    spec = importlib.util.spec_from_file_location(loader.name, file, loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def records(out, name="results.jsonl"):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def rows(report, title):
    """The cells of the table below the heading that starts with a title."""
    text = report[report.index(f"## {title}") :].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_store_drops_half_a_line_and_refuses_another_device(tmp_path):
    about = {"device": "here"}
    store = results.Store(tmp_path / "s.jsonl", about)
    store.add({"a": 1, "b": [2]}, ms=3.0)
    with open(tmp_path / "s.jsonl", "a") as file:
        file.write('{"key": {"a": 2')
    again = results.Store(tmp_path / "s.jsonl", about)
    assert {"b": [2], "a": 1} in again and {"a": 2} not in again and again.get({"a": 1, "b": [2]})["ms"] == 3.0
    again.add({"a": 2}, ms=4.0)
    assert [r["ms"] for r in results.Store(tmp_path / "s.jsonl", about).results] == [3.0, 4.0]
    with pytest.raises(SystemExit, match="'here', this is 'there'"):
        results.Store(tmp_path / "s.jsonl", {"device": "there"})
    assert not results.Store(tmp_path / "s.jsonl", {"device": "there"}, fresh=True).results


def test_summary():
    assert results.summary([3.0, 1.0, 2.0, 5.0, 4.0]) == {
        "median": 3.0, "q1": 2.0, "q3": 4.0, "min": 1.0, "max": 5.0, "rounds": 5,
    }  # fmt: skip
    assert results.summary([7.0])["q3"] == 7.0


def test_the_published_evaluation_killed_and_resumed(tmp_path, capsys):
    arguments = ["--device=cpu", "--smoke", f"--out={tmp_path}"]
    process = subprocess.Popen(
        [sys.executable, BENCH / "paper" / "run.py", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = tmp_path / "results.jsonl"
    for _ in range(12000):
        if process.poll() is not None or (path.exists() and path.read_bytes().count(b"\n") > 20):
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = records(tmp_path)[:20]
    with open(path, "a") as file:
        file.write('{"key": {"method": "plain", ')
    run = script("paper/run")
    run.main(arguments)
    found = records(tmp_path)
    assert found[:20] == before
    keys = [json.dumps(r["key"], sort_keys=True) for r in found if "key" in r]
    assert len(keys) == len(set(keys)) and sum("about" in r for r in found) == 2
    run.main(arguments)  # nothing is left to do
    assert records(tmp_path) == found

    report = (tmp_path / "report.md").read_text()
    assert report in capsys.readouterr().out
    layers = [r for r in found if "ms" in r]
    assert all(r["ms"]["min"] > 0 and r["peak"] > r["extra"] > 0 for r in layers)
    methods = {"plain", "wtconv", "depthwise 3", "dense 3", "depthwise 7", "dense 7", *run.ablation_methods("cpu")}
    assert {r["key"]["method"] for r in layers} == methods and "unfused+recompute_analysis" in methods
    for r in found:
        if r.get("key", {}).get("pass") == "agreement":
            assert all(0 < e["ours"] < 0.01 and e["worst tile"] <= 2 for e in r["errors"].values()), r
    table = rows(report, "Training step, k = 3: times faster")
    assert [row[:2] for row in table if row[1] == "bf16"] == [
        ["depthwise 3x3", "bf16"], ["dense 3x3", "bf16"], ["depthwise 7x7", "bf16"], ["dense 7x7", "bf16"],
        ["WTConv, this library", "bf16"],
    ]  # fmt: skip
    assert all(row[-1] == "2" for row in table if row[0] == "WTConv, this library")
    assert len(rows(report, "The three reformulations, training step, fp32, k = 3: times")) == 6
    assert len(rows(report, "Numerical agreement")) == 6
    assert {row[0] for row in rows(report, "Absolute figures")} >= {"WTConv, plain PyTorch", "WTConv, this library"}
    pictures = ["latency.png", "memory.png"] if importlib.util.find_spec("matplotlib") else []
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_errors_are_at_most_twice_the_plain_layers(backend, dtype):
    """In tiles, for y and every gradient, where sums have thousands of terms: one long sum in float32 would not do."""
    run = script("paper/run")
    errors = run.agree(run.Case((2, 32, 64, 64), dtype, 5, 2), backend, argparse.Namespace(device="cpu"))
    assert all(e["plain"] > 0 and e["worst tile"] <= 2 for e in errors.values()), errors


def test_networks(tmp_path, capsys):
    pytest.importorskip("timm")
    run = script("network/run")
    arguments = ["--device=cpu", "--smoke", f"--out={tmp_path}"]
    with pytest.raises(SystemExit, match="holds no results"):
        run.main([*arguments, "--budget=0"])  # not even the first
    run.main(arguments)
    found = records(tmp_path)
    settings = [(r["key"]["network"], r["key"]["layout"], r["key"]["dtype"], r["key"]["pass"]) for r in found[1:]]
    assert len(settings) == len(set(settings)) == 4 * 2 * 2 * 2
    assert all(r["images_per_s"] > 0 and r["peak"] > 0 for r in found[1:])
    run.main(arguments)
    assert records(tmp_path) == found
    run.main([*arguments, "--profile", "--passes=step"])
    profiles = [r for r in records(tmp_path) if "kinds" in r]
    assert len(profiles) == 2 * 2 * 2
    for r in profiles:
        assert {"layer", "LayerNorm", "Linear", "GELU"} <= r["kinds"].keys()
        assert sum(r["inputs"].values()) == 5
    report = (tmp_path / "report.md").read_text()
    assert report in capsys.readouterr().out
    assert [row[0] for row in rows(report, "Inference")[:2]] == ["ConvNeXt-T", "ConvNeXt-T"]
    assert "Profile: WTConvNeXt-T, step, NCHW" in report


def test_sweep(tmp_path, capsys):
    sweep = script("sweep")
    arguments = ["--device=cpu", "--smoke", f"--out={tmp_path}", "--dtypes", "fp32", "bf16"]
    with pytest.raises(SystemExit, match="holds no results"):
        sweep.main([*arguments, "--budget=0"])
    sweep.main(arguments)
    found = records(tmp_path, "sweep.jsonl")
    compared = [r for r in found[1:] if "ms" in r]
    checked = [r for r in found[1:] if "limit" in r]
    assert found[0]["about"]["planned"] == len(compared) / 2 + len(checked)
    assert {(r["key"]["against"], r["key"]["pass"]) for r in compared} == {
        (other, what) for other in ("depthwise", "plain") for what in ("forward", "step")
    }
    assert all(r["ms"][who]["min"] > 0 for r in compared for who in ("ours", "other"))
    assert {r["key"]["check"] for r in checked} == {"channels-last", "strided"} and all(r["value"] > 0 for r in checked)
    sweep.main(arguments)  # nothing is left to do
    assert records(tmp_path, "sweep.jsonl") == found
    report = (tmp_path / "sweep.md").read_text()
    assert report in capsys.readouterr().out
    assert len(rows(report, "Checks")) == 2
    cases = rows(report, "Forward against depthwise k x k")
    times = [float(row[3]) for row in cases]
    assert len(cases) == 10 and times == sorted(times)


def test_the_sweeps_shapes():
    """What was promised is among them, and random ones are the same at every call."""
    sweep = script("sweep")
    found = sweep.families(smoke=False)
    assert {c.shape for c in found["sweep"]} == {(8, c, h, h) for c in (32, 64, 128) for h in (128, 256, 512)}
    assert {c.levels for c in found["sweep"]} == {1, 2, 3, 4, 5} and {c.kernel for c in found["sweep"]} == {3, 5}
    assert {c.shape[0] for c in found["stages"]} == {1, 8, 64, 256}
    drawn = found["random"]
    assert len(drawn) == 60 == len(set(drawn)) and drawn == sweep.families(smoke=False)["random"]
    assert {(5, 1000), (1, 1)} <= {c.shape[2:] for c in drawn}


def test_strided_views_hold_the_same_numbers():
    torch = pytest.importorskip("torch")
    sweep, x = script("sweep"), torch.randn(2, 3, 5, 7)
    for view in sweep.STRIDED:
        seen = sweep.strided(view, x)
        assert torch.equal(seen, x) and not seen.is_contiguous(), view


def ncu_lines(launched, metrics):
    """As ncu --csv prints them: a line a metric of every launch, among others."""
    head = ["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
    quoted = [head, *([str(i), name, m, "", v] for i, name in enumerate(launched) for m, v in metrics.items())]
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in quoted)


def test_counters(tmp_path, monkeypatch, capsys):
    counters = script("counters")
    launched = [
        *["void wtconv::cuda::resident_kernel<float, (int)5, (bool)0>(wtconv::cuda::ResidentArgs)"] * 2,
        "void wtconv::cuda::resident_gradient_kernel<float>(int)",
        "wtconv::cuda::finish_kernel(int)",
        *["pool_kernel", "resident_kernel", "tiled_kernel"] * 2,
        *["tiled_gradient_kernel", "pool_kernel", "pool_kernel", "resident_gradient_kernel", "finish_kernel"],
    ]
    values = dict.fromkeys(counters.METRICS.values(), "1,024") | {counters.METRICS["warps"]: "4.0"}
    cases = ["n1c2h16w8k5l1_f32", "n1c1h64w64k3l5_f16"]
    found = counters.by_case(cases, counters.launches(ncu_lines(launched, values)))
    counters.write(tmp_path, found, None)
    (head, *kernels), (_, *traffic) = ([line.split(",") for line in (tmp_path / f"{name}.csv").read_text().splitlines()]
                                       for name in ("counters", "traffic"))  # fmt: skip
    assert [k[1] for k in kernels] == [
        *["forward", "input gradient", *["weight gradient"] * 2],
        *[*["forward"] * 3, *["input gradient"] * 3, *["weight gradient"] * 5],
    ]
    first = dict(zip(head, kernels[0]))
    assert first["kernel"] == "resident_kernel" and first["wavefronts_a_plane"] == "512"
    assert first["least_a_plane"] == "200"  # 128 pixels, 25 taps, the level's bands as many again, 32 lanes
    assert traffic == [
        ["n1c2h16w8k5l1_f32", "forward", "1", "1.000", "1.000"], ["n1c2h16w8k5l1_f32", "step", "4", "4.000", "4.000"],
        ["n1c1h64w64k3l5_f16", "forward", "3", "0.375", "0.375"], ["n1c1h64w64k3l5_f16", "step", "11", "1.375", "1.375"],
    ]  # fmt: skip
    with pytest.raises(ValueError, match="2 closing kernels of 1 cases"):
        counters.by_case(cases[:1], counters.launches(ncu_lines(launched, values)))
    assert counters.tensor_metric("sm__inst_executed_pipe_tensor  Counter\n").startswith(
        "sm__inst_executed_pipe_tensor."
    )
    assert counters.tensor_metric("sm__inst_executed_pipe_tensor_op_imma") is None

    binaries = tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))
    counters.main(["no-bench"])
    (binaries / "ncu").write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1\n")
    (binaries / "ncu").chmod(0o755)
    counters.main([str(binaries / "ncu"), f"--out={tmp_path / 'none'}"])
    assert capsys.readouterr().out.count("skipped: counters") == 2 and not (tmp_path / "none").exists()


PTXAS = """ptxas info    : Compiling entry function '_ZN6wtconv4cuda15resident_kernelIfLi5ELb1ENS0_10FixedPlaneIX' for 'sm_90a'
    0 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN6wtconv4cuda15resident_kernelIfLi5ELb0ENS0_8AnyPlaneEEEv' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN6wtconv4cuda15resident_kernelIfLi5ELb0ENS0_10FixedPlaneIX' for 'sm_90a'
    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 126 registers, used 1 barriers
"""


def test_tune_reads_tables_and_ptxas(tmp_path):
    tune = script("scripts/tune")
    for table in tune.TABLES:
        entries = tune.entries_in(table)
        assert all(e[3] in (3, 5, 7) for e in entries) and len({e[:4] for e in entries}) == len(entries) >= 6
        header = tune.overlay(table, [(9, 8, 7, 6, 5, 4, 3), (1,) * 7], tmp_path) / "cuda" / "tuning"
        text = (header / f"{tune.TABLES[table][0]}.hpp").read_text()
        assert f"{table}[] = {{\n    {{9, 8, 7, 6, 5, 4, 3}},\n    {{1, 1, 1, 1, 1, 1, 1}}\n}};" in text
        assert "static_assert" not in text
    assert tune.report(PTXAS, "resident_kernel") == (126, 12)
    with pytest.raises(ValueError, match="nothing of cluster_kernel"):
        tune.report(PTXAS, "cluster_kernel")


def test_tune_prints_the_fastest_entry(tmp_path, capsys):
    """Of programs that say what a benchmark says: the GPU's part, without one."""
    tune = script("scripts/tune")
    made = []
    for program, (blocks, ms) in enumerate([(5, "0.070"), (4, "0.060"), (3, None), (2, "0.080")]):
        data = f'{{"gpu": "a GPU", "results": [{{"forward_ms": {ms}}}]}}'
        line = f"echo '{data}' >\"$2\"" if ms else "echo FAILED: wrong; exit 1"
        (tmp_path / str(program)).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / str(program)).chmod(0o755)
        entry = [28, 28, 4, 5, 2, 7, blocks]
        made.append(dict(entry=entry, threads=96, shared=1, registers=9, spilled=0, program=str(program), error=""))
    case = "n64c192h28w28k5l4_f32"
    (tmp_path / "candidates.json").write_text(json.dumps({"table": "apply_shapes", "case": case, "made": made}))
    found = tune.search(tmp_path, lambda: False)
    out = capsys.readouterr().out
    assert "in place of {28, 28, 4, 5, 2, 7, 5}" in out and "    {28, 28, 4, 5, 2, 7, 4}," in out
    assert (
        "a GPU" in out
        and f"{case}: 0.0600 ms, before 0.0700" in out
        and "{28, 28, 4, 5, 2, 7, 3}: FAILED: wrong" in out
    )
    assert found["times"]["{28, 28, 4, 5, 2, 7, 4}"] == [0.06] * 3 and "{28, 28, 4, 5, 2, 7, 3}" not in found["times"]
    made[1]["program"] = ""
    (tmp_path / "candidates.json").write_text(json.dumps({"table": "apply_shapes", "case": case, "made": made}))
    tune.search(tmp_path, lambda: False)
    assert "{28, 28, 4, 5, 2, 7, 5} stays, 0.0700 ms" in capsys.readouterr().out


def test_scaling(tmp_path):
    pytest.importorskip("timm")
    out = tmp_path / "scaling.json"
    done = subprocess.run(
        [sys.executable, BENCH / "scaling.py", "--device=cpu", "--ranks", "1", "2", "--smoke", f"--out={out}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = json.loads(out.read_text())["runs"]
    assert (one["ranks"], two["ranks"]) == (1, 2) and not two["warnings"]
    assert 0 < two["gradients"]["fp32"]["all"] < 1e-6 and 0 < two["gradients"]["fp64"]["worst parameter"] < 1e-12
    assert set(two["training"]) == {"fp32", "bf16"}
    assert "efficiency" in done.stdout and "| 2 | bf16 |" in done.stdout

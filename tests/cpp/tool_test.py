"""The command-line tool from outside: `python3 tool_test.py TOOL [unittest's arguments]`."""

import gzip
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

TOOL = os.path.abspath(sys.argv.pop(1))
COMMANDS = ["list", "explain", "check", "bench", "model", "run", "compare"]
SMALL = "n2c3h9w8k3l2_f32"
HOST = {"cpu": "test", "rates": [{"threads": n, "bandwidth": 2e10, "fma_f32": 1e11, "fma_f64": 5e10} for n in (1, 2)]}


def run(*arguments, **environment):
    return subprocess.run(
        [TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def run_in_terminal(*arguments, **environment):
    """Exit code and output where standard output and error are a terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(TOOL, [TOOL, *map(str, arguments)], {**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment})
    output = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


def idx_file(path, count=40, height=9, width=8, cut=0):
    values = bytes((i * 37 + i // 11) % 256 for i in range(count * height * width))
    data = gzip.compress(struct.pack(">BBBBIII", 0, 0, 8, 3, count, height, width) + values)
    path.write_bytes(data[: len(data) - cut])


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", data[:8]
    assert data[12:16] == b"IHDR" and zlib.crc32(data[12:29]) == struct.unpack(">I", data[29:33])[0]
    return struct.unpack(">II", data[16:24])


class Tool(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.host = self.folder / "host.json"
        self.host.write_text(json.dumps({"host": HOST}))
        self.idx = self.folder / "images.gz"
        idx_file(self.idx)

    def refused(self, *arguments, says=()):
        """Exit code 2, nothing on standard output, one line on standard error that holds the given texts."""
        result = run(*arguments)
        self.assertEqual(result.returncode, 2, result)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("wtconv: "), result.stderr)
        for text in says:
            self.assertIn(str(text), result.stderr)

    def json_of(self, *arguments, code=0):
        result = run(*arguments, "--json")
        self.assertEqual(result.returncode, code, result)
        self.assertEqual(result.stderr, "")
        return json.loads(result.stdout)

    # What every command does.

    def examples(self):
        """One quick call of each command."""
        return {
            "list": [],
            "explain": [SMALL, "--threads", 1, "--host-file", self.host],
            "check": [SMALL],
            "bench": [SMALL, "--threads", 1, "--host-file", self.host, "--rounds", 5],
            "model": [SMALL],
            "run": ["--idx", self.idx, "--out", self.folder / "run", "--levels", 2],
            "compare": [
                *("--idx", self.idx, "--out", self.folder / "c.png", "--batch", 2, "--channels", 4, "--levels", 2),
                *("--threads", 1, "--host-file", self.host, "--seconds", 0.1, "--baseline", "reference"),
            ],
        }

    def test_help(self):
        result = run("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for command in COMMANDS:
            self.assertRegex(result.stdout, rf"(?m)^  {command} +\w")
            one = run(command, "--help")
            self.assertEqual((one.returncode, one.stderr), (0, ""))
            self.assertIn(f"Usage: wtconv {command}", one.stdout)
            self.assertIn("--json", one.stdout)
            self.assertTrue(one.stdout.endswith("\n"))
            self.assertLessEqual(max(map(len, one.stdout.splitlines())), 80, one.stdout)

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^\d+\.\d+\.\d+\n$")

    def test_examples_cover_every_command(self):
        self.assertEqual(list(self.examples()), COMMANDS)

    def test_plain_output_off_a_terminal(self):
        for command, arguments in self.examples().items():
            with self.subTest(command):
                result = run(command, *arguments)
                self.assertEqual((result.returncode, result.stderr), (0, ""), result)
                self.assertNotRegex(result.stdout, r"[\x00-\x09\x0b-\x1f]")
                self.assertTrue(result.stdout.isascii())
                # Paths are as long as they are; all else fits 80 columns.
                lines = [line for line in result.stdout.splitlines() if str(self.folder) not in line]
                self.assertLessEqual(max(map(len, lines)), 80, result.stdout)

    def test_json(self):
        for command, arguments in self.examples().items():
            with self.subTest(command):
                self.assertIsInstance(self.json_of(command, *arguments), dict)

    def test_colours_on_a_terminal_only(self):
        code, output = run_in_terminal("list")
        self.assertEqual(code, 0)
        self.assertIn("\x1b[", output)
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn("\x1b", run_in_terminal("list", **environment)[1])
        code, output = run_in_terminal("list", "--json")
        self.assertNotIn("\x1b", output)

    def test_progress_on_a_terminal_for_long_work_only(self):
        cases = self.folder / "cases.txt"
        cases.write_text("n1c16h24w24k5l3_f32\n" * 50000)
        # Stopped as soon as the bar is there: after two seconds, more under a sanitizer on a busy machine.
        command = f"exec timeout 120 {TOOL} check --cases {cases} --backend reference --quiet"
        pid, fd = pty.fork()
        if pid == 0:
            os.execv("/bin/sh", ["sh", "-c", command])
        output = b""
        try:
            while b"s left" not in output:
                output += os.read(fd, 65536)
        except OSError:
            pass
        os.kill(pid, signal.SIGTERM)
        os.close(fd)
        os.waitpid(pid, 0)
        self.assertIn(b"checking [", output)
        self.assertNotIn("s left", run_in_terminal("check", SMALL)[1])

    # Errors.

    def test_usage_errors(self):
        self.refused(says=["subcommand"])
        self.refused("bla", says=["bla"])
        self.refused("check", says=["CASE"])
        self.refused("check", SMALL, "--bla", says=["--bla"])
        self.refused("check", "n2c3", says=["n2c3", "height"])
        self.refused("check", "n2c3h9w8k99l2_f32", says=["kernel", "99"])
        self.refused("check", SMALL, "--threads", "0", says=["--threads", "0"])
        self.refused("check", SMALL, "--threads", "x", says=["--threads", "x"])
        self.refused("check", SMALL, "--pass", "sideways", says=["sideways"])
        self.refused("check", SMALL, "--backend", "abacus", says=["abacus", "reference"])
        self.refused("check", "--cases", self.folder / "none.txt", says=["none.txt"])
        self.refused("explain", SMALL, "--backend", "abacus", says=["abacus"])
        self.refused("bench", SMALL, "--against", "abacus", says=["abacus"])
        self.refused("model", "--machine", "abacus", says=["abacus", "H200"])
        self.refused("run", "--index", 40, "--idx", self.idx, says=["40"])
        self.refused(
            "compare", "--idx", self.idx, "--backend", "reference", "--baseline", "reference", says=["reference"]
        )

    def test_input_errors_name_the_file_and_the_reason(self):
        png = self.folder / "x.png"
        png.write_bytes(b"\x89PNG\r\n\x1a\nnot really")
        self.refused("run", "--image", png, "--out", self.folder / "run", says=[png, "corrupt PNG"])
        self.refused("run", "--image", self.folder / "none.png", says=["none.png", "No such file"])
        self.refused("run", "--image", "a.png", "--image", "b.png", says=["one picture", "b.png"])
        self.refused("run", "--image", self.folder, says=[self.folder, "folder"])
        idx_file(self.idx, cut=9)
        self.refused("compare", "--idx", self.idx, "--out", self.folder / "c.png", says=[self.idx, "truncated"])
        self.refused("compare", "--folder", self.folder / "none", "--out", self.folder / "c.png", says=["none"])
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused("compare", "--folder", empty, "--out", self.folder / "c.png", says=["empty", ".png"])
        self.host.write_text("{}")
        self.refused("explain", SMALL, "--host-file", self.host, says=[self.host])
        self.host.write_text(json.dumps({"host": HOST}))
        self.refused("explain", SMALL, "--host-file", self.host, "--threads", 7, says=["7 threads", "1, 2"])

    def test_outputs_are_safe(self):
        self.refused(
            "compare", "--idx", self.idx, "--out", self.folder / "none" / "c.png", says=["none", "does not exist"]
        )
        before = self.idx.read_bytes()
        self.refused("compare", "--idx", self.idx, "--out", self.idx, says=[self.idx, "input"])
        self.assertEqual(self.idx.read_bytes(), before)
        picture = self.folder / "run"
        picture.write_text("a file where the folder should be")
        self.refused("run", "--idx", self.idx, "--out", picture, says=[picture])

    # The commands.

    def test_list(self):
        backends = {b["name"]: b for b in self.json_of("list")["backends"]}
        self.assertTrue(backends["reference"]["available"])
        self.assertTrue(backends["cpu"]["available"])

    def test_explain_needs_no_gpu(self):
        found = {b["name"]: b for b in self.json_of("list")["backends"]}
        if "cuda" not in found:
            self.skipTest("this build has no CUDA backend")
        case = self.json_of("explain", SMALL, "--backend", "cuda", "--threads", 1, "--host-file", self.host)["cases"][0]
        self.assertEqual([p["backend"] for p in case["plans"]], ["cuda", "cuda"])
        for plan in case["plans"]:
            self.assertNotIn(plan["strategy"], ("", "none"))
            self.assertEqual("as on an NVIDIA H200" in plan["reason"], not found["cuda"]["available"])

    def test_explain(self):
        case = self.json_of("explain", "n2c3h9w8k3l2_f32_s2", "--threads", 1, "--host-file", self.host)["cases"][0]
        self.assertEqual([(s["height"], s["width"]) for s in case["shapes"]], [(9, 8), (5, 4), (3, 2)])
        self.assertEqual([p["pass"] for p in case["plans"]], ["forward", "backward"])
        for plan in case["plans"]:
            self.assertTrue(plan["strategy"] and plan["reason"] and plan["predicted_seconds"] > 0)

    def test_check(self):
        one = self.json_of("check", SMALL, "--backend", "cpu")
        self.assertEqual((one["passed"], one["failed"]), (1, 0))
        names = [t["name"] for t in one["checks"][0]["tensors"]]
        self.assertEqual(names[:2], ["y", "gradient of x"])
        self.assertEqual(len(names), 2 + 3 + 2 * 2)
        forward = self.json_of("check", SMALL, "--pass", "forward")
        self.assertEqual([t["name"] for t in forward["checks"][0]["tensors"]], ["y"])
        cases = self.folder / "cases.txt"
        cases.write_text(f"# a comment\n{SMALL}\n\n{SMALL}_nhwc\n")
        self.assertEqual(self.json_of("check", "--cases", cases, "--exact")["passed"], 2)

    def test_bench(self):
        out = self.json_of("bench", *self.examples()["bench"], "--against", "reference")
        lines = out["cases"][0]["lines"]
        self.assertEqual(len(lines), 6)
        for line in lines:
            self.assertGreater(line["median_seconds"], 0)
            self.assertGreater(line["of_roofline"], 0)
            self.assertEqual(line["rounds"], 5)
            self.assertIn("reference", line["speedup_over"])
        both = self.json_of("bench", *self.examples()["bench"], "--backend", "cpu", "--backend", "reference")
        self.assertEqual({line["backend"] for line in both["cases"][0]["lines"]}, {"cpu", "reference"})
        forward = self.json_of("bench", *self.examples()["bench"], "--pass", "forward")
        self.assertEqual([line["pass"] for line in forward["cases"][0]["lines"]], ["forward"])

    def test_model(self):
        published = {p["formulation"]: p for p in self.json_of("model")["published"]}
        self.assertEqual(
            [round(v, 2) for v in published["reference"]["elements_per_n"]], [17.75, 20.44, 21.11, 21.28, 21.32]
        )
        self.assertEqual(
            [round(v, 2) for v in published["published fused"]["elements_per_n"]], [7.0, 8.0, 8.25, 8.31, 8.33]
        )
        self.assertEqual(round(published["reference"]["flop_per_byte_f32_l5"]["k3"], 2), 0.74)
        two = self.json_of("model", "--machine", "H200", "--machine", "RTX A6000")
        self.assertEqual([m["name"] for m in two["machines"]], ["H200", "RTX A6000"])
        out = self.json_of("model", SMALL, "--machine", "H200")
        self.assertEqual([m["name"] for m in out["machines"]], ["H200"])
        self.assertEqual(len(out["cases"][0]["formulations"]), 4)

    def test_measure_host_writes_a_host_file(self):
        host = self.folder / "measured.json"
        host.write_text(json.dumps(self.json_of("model", "--measure-host")))
        rates = json.loads(host.read_text())["host"]["rates"]
        self.assertEqual(rates[0]["threads"], 1)
        for rate in rates:
            self.assertGreater(rate["bandwidth"], 1e8)
            self.assertGreater(rate["fma_f32"], 1e8)
        self.assertEqual(run("explain", SMALL, "--threads", 1, "--host-file", host).returncode, 0)

    def test_run(self):
        for preset in ([], ["--random"]):
            folder = self.folder / f"run{len(preset)}"
            out = self.json_of("run", "--idx", self.idx, "--out", folder, "--levels", 2, "--index", 3, *preset)
            names = {f"level{l}_{b}.png" for l in (1, 2) for b in ("LL", "LH", "HL", "HH")}
            self.assertEqual({p.name for p in folder.iterdir()}, names | {"input.png", "output.png", "overview.png"})
            self.assertEqual(png_size(folder / "level1_LH.png"), (8, 9))
            self.assertLess(out["bands_add_up_to_output_within"], 1e-5)
        # The identity gives the picture back, and a picture it wrote can be read.
        same = self.folder / "run0"
        self.assertEqual((same / "input.png").read_bytes(), (same / "output.png").read_bytes())
        self.assertEqual(run("run", "--image", same / "input.png", "--out", self.folder / "again").returncode, 0)

    def test_compare(self):
        out = self.json_of("compare", *self.examples()["compare"])
        self.assertTrue(out["same_answer"])
        self.assertEqual(out["case"], "n2c4h9w8k5l2_f32")
        self.assertEqual([d["tensors"] for d in out["differences"]], ["y", "gradient of x", "gradients of weights"])
        for d in out["differences"]:
            self.assertGreater(d["largest"], 0)
            self.assertLess(d["max_difference"], 1e-4 * d["largest"])
        for side in ("baseline", "backend"):
            self.assertGreater(out[side]["step"]["median_seconds"], 0)
        width, height = png_size(self.folder / "c.png")
        self.assertTrue(1000 <= width <= 2000 and 500 <= height <= 3000)

    def test_compare_takes_a_folder_of_one_size(self):
        pictures = self.folder / "pictures"
        for index in range(3):
            run("run", "--idx", self.idx, "--index", index, "--out", self.folder / "run")
            pictures.mkdir(exist_ok=True)
            (self.folder / "run" / "input.png").rename(pictures / f"{index}.png")
        arguments = ["compare", "--folder", pictures, "--out", self.folder / "c.png", *self.examples()["compare"][10:]]
        self.assertEqual(self.json_of(*arguments)["case"], "n3c1h9w8k5l3_f32")
        one = ["compare", "--image", pictures / "0.png", "--image", pictures / "2.png"]
        self.assertEqual(self.json_of(*one, *arguments[3:])["case"], "n2c1h9w8k5l3_f32")
        (self.folder / "run" / "overview.png").rename(pictures / "3.png")
        self.refused(*arguments, says=["3.png", "one size"])


if __name__ == "__main__":
    unittest.main()

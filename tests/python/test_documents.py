"""The Python on the front page runs."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_there_is_some():
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block(number):
    exec(compile(BLOCKS[number], f"README.md, block {number}", "exec"), {})

"""Calls the operators with random arguments, most of them wrong. Usage: hostile.py COUNT [SEED]

Every call must either raise a Python exception or give the plain composition's values.
"""

import random
import sys
import warnings

import torch
from oracle import assert_right, evaluate, grouped, operator, random_inputs
from wtconv import _ops

warnings.simplefilter("ignore")
DTYPES = [torch.float32] * 6 + [torch.float64, torch.float16, torch.bfloat16]
STRANGE = [None, 0, -1, 2**40, 2**63 - 1, 1.5, "x", "", "\0", [], [None], float("nan"), object()]


def strange_tensor(r):
    shape = [r.choice([0, 1, 1, 2, 3, 5, 16]) for _ in range(r.randrange(7))]
    t = torch.zeros(shape, dtype=r.choice([*DTYPES, torch.int64, torch.bool, torch.complex64, torch.uint8]))
    change = r.randrange(8)
    if change == 0 and t.dim():
        t = t.expand(r.choice([1, 4]), *t.shape)
    elif change == 1 and t.dim() > 1:
        t = t.transpose(0, -1)
    elif change == 2:
        t = t.to("meta")
    elif change == 3 and t.dim() == 2:
        t = t.to_sparse()
    elif change == 4 and t.is_complex():
        t = t.conj()
    return t


def corrupted(r, arguments):
    arguments = list(arguments)
    for _ in range(r.choice([1, 1, 2])):
        at = r.randrange(len(arguments))
        value = arguments[at]
        if isinstance(value, list) and value and r.random() < 0.7:
            value = list(value)
            action = r.randrange(4)
            if action == 0:
                value.pop()
            elif action == 1:
                value *= 9
            else:
                value[r.randrange(len(value))] = strange_tensor(r) if action == 2 else r.choice(STRANGE)
            arguments[at] = value
        elif isinstance(value, torch.Tensor) and r.random() < 0.5 and value.numel() > 1:
            dim = r.randrange(value.dim())
            arguments[at] = r.choice(
                [value.narrow(dim, 0, value.shape[dim] - 1), value.double(), value.unsqueeze(0), value.flip(dim)]
            )
        else:
            arguments[at] = strange_tensor(r) if r.random() < 0.6 else r.choice(STRANGE)
    return arguments


def main(count, seed):
    r = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    right, refused, survived = 0, 0, 0
    for n in range(count):
        levels, stride, dtype = r.randrange(5), r.choice([1, 1, 2, 3, 40]), r.choice(DTYPES)
        sizes = r.randrange(3), r.randrange(1, 6), r.randrange(1, 20), r.randrange(1, 20), r.randrange(1, 10)
        inputs, dy = random_inputs(*sizes, levels, stride, bias=r.random() < 0.7, dtype=dtype)
        if r.random() < 0.25:
            assert_right(evaluate(inputs, dy, operator(stride)), inputs, dy, stride, f"call {n} {sizes} l{levels}")
            right += 1
            continue
        forward = [*grouped(inputs), stride, ""]
        operation, arguments = r.choice(
            [
                (_ops._forward, forward),
                (_ops._backward, [dy, *grouped(inputs), stride, r.choice([0, 1, r.randrange(2**20)]), ""]),
            ]
        )
        try:
            operation(*corrupted(r, arguments))
            survived += 1
        except (ValueError, TypeError, RuntimeError, NotImplementedError):
            refused += 1
    print(f"{right} right, {refused} refused, {survived} harmless")
    return right > count // 8 and refused > count // 4


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))

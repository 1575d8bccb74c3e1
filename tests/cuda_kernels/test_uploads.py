"""`upload`: what comes of the arrays, and that a device's copy is asked for so that nobody waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chatserve.models.batch import Int32Array
from chatserve.models.cuda_upload import upload

CPU = torch.device("cpu")
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


@given(st.lists(SHAPES.flatmap(lambda shape: arrays(np.int32, shape)), min_size=1, max_size=4))
def test_arrays_arrive_as_they_are(given: list[Int32Array]) -> None:
    there = upload(CPU, *given)
    assert [tensor.dtype for tensor in there] == [torch.int32] * len(given)
    for tensor, array in zip(there, given, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_part_of_a_matrix_arrives_without_the_rest() -> None:
    matrix = np.arange(20, dtype=np.int32).reshape(4, 5)
    [there] = upload(CPU, matrix[1:3, :2])
    assert there.tolist() == [[5, 6], [10, 11]]


def test_what_was_uploaded_stays_when_the_array_changes_or_another_is_uploaded() -> None:
    numbers = np.arange(6, dtype=np.int32)
    [first] = upload(CPU, numbers)
    numbers += 10
    [second] = upload(CPU, numbers)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15])


def test_a_device_is_given_one_copy_from_pinned_memory_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    allocations: list[dict[str, Any]] = []
    copies: list[tuple[Any, dict[str, Any]]] = []
    empty, to = torch.empty, torch.Tensor.to

    def allocate(size: int, **options: Any) -> torch.Tensor:
        allocations.append(options)
        return empty(size, dtype=options["dtype"])

    def copy(tensor: torch.Tensor, device: Any, **options: Any) -> torch.Tensor:
        copies.append((device, options))
        return to(tensor, CPU)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    device = torch.device("cuda:0")
    upload(device, np.arange(3, dtype=np.int32), np.zeros((2, 2), np.int32))
    assert allocations == [{"dtype": torch.int32, "pin_memory": True}]
    assert copies == [(device, {"non_blocking": True})]

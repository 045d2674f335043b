"""What any number of ranks saves, any other number reads: every region of every tensor, bit for bit."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.rank_checkpoints import cut, latest_of, save_cut
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import CheckpointStore, Saved
from gpuwise.runtime.parallel.regions import Region, check_cover, region_on

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
meshes = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple).filter(lambda mesh: math.prod(mesh) <= 8)


@st.composite
def placed(draw: st.DrawFn, shape: tuple[int, ...], mesh: tuple[int, ...]) -> list[Any]:
    """Placements as FSDP2 over tensor parallelism makes them: an axis whose dim inner axes split, too, is strided."""
    placements: list[Any] = []
    for axis, _ in reversed(list(enumerate(mesh))):
        dim = draw(st.none() | st.integers(0, len(shape) - 1))
        inner = math.prod(
            mesh[axis + 1 + number] for number, other in enumerate(placements) if getattr(other, "dim", None) == dim
        )
        plain = Shard(dim) if dim is not None else Replicate()
        placements.insert(0, _StridedShard(dim, split_factor=inner) if dim is not None and inner > 1 else plain)
    return placements


def coordinates(mesh: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(map(int, torch.unravel_index(torch.tensor(rank), mesh))) for rank in range(math.prod(mesh))]


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_ranks_read_what_other_ranks_have_saved(data: st.DataObject):
    tensors = {
        f"t{number}": torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(number)).to(dtype)
        for number, (shape, dtype) in enumerate(data.draw(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=3)))
    }
    before, after = data.draw(meshes), data.draw(meshes)
    placements = {
        name: [data.draw(placed(tuple(tensor.shape), mesh)) for mesh in (before, after)] for name, tensor in tensors.items()
    }

    def regions(mesh: tuple[int, ...], which: int, at: tuple[int, ...]) -> dict[str, Region]:
        return {f"model/{name}": region_on(tensors[name].shape, mesh, at, placements[name][which]) for name in tensors}

    with tempfile.TemporaryDirectory() as folder:
        outcomes = save_cut(Path(folder), [cut({"model": tensors}, regions(before, 0, at)) for at in coordinates(before)])
        assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
        checkpoint = latest_of(Path(folder), 2)[0]
        assert checkpoint is not None
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        written = sum(path.stat().st_size for path in checkpoint.path.glob("*.safetensors"))
        assert written <= nbytes + 8192 * math.prod(before)  # each element once; the rest is headers
        for rank, at in enumerate(coordinates(after)):
            model: Any = checkpoint.open(rank=rank)["model"]
            for name, region in regions(after, 1, at).items():
                name = name.removeprefix("model/")
                part, expected = model[name].region(region), tensors[name][region.slices(Region.whole(tensors[name].shape))]
                assert part.dtype == expected.dtype
                assert part.shape == expected.shape
                assert torch.equal(part.float(), expected.float())
        whole: Any = CheckpointStore(folder).all()[0].load()["model"]
        assert all(torch.equal(whole[name].float(), tensor.float()) for name, tensor in tensors.items())


@given(shapes, meshes, st.data())
@settings(deadline=None)
def test_the_regions_of_all_ranks_are_the_whole(shape: tuple[int, ...], mesh: tuple[int, ...], data: st.DataObject):
    placements = data.draw(placed(shape, mesh))
    regions = {region_on(shape, mesh, at, placements) for at in coordinates(mesh)}
    check_cover(Region.whole(shape), [region for region in regions if region.numel])


boxes = st.builds(
    lambda sides: Region(tuple(a for a, _ in sides), tuple(n for _, n in sides)),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=2, max_size=2),
)


@given(st.lists(boxes, min_size=1, max_size=5))
@settings(deadline=None, max_examples=300)
def test_parts_that_overlap_or_leave_a_hole_are_refused(parts: list[Region]):
    whole = Region((0, 0), (4, 4))
    count = torch.zeros(7, 7, dtype=torch.int64)
    for part in parts:
        count[part.slices(whole)] += 1
    inside = all(part.common(whole) == part for part in parts)
    exact = bool((count[:4, :4] == 1).all()) and inside
    if not inside:
        return
    if exact:
        check_cover(whole, parts)
    else:
        with pytest.raises(FileFormatError):
            check_cover(whole, parts)


@given(boxes, boxes)
def test_what_two_regions_have_in_common(first: Region, second: Region):
    grid = torch.zeros(8, 8, dtype=torch.int64)
    whole = Region((0, 0), (8, 8))
    grid[first.slices(whole)] += 1
    grid[second.slices(whole)] += 1
    common = first.common(second)
    assert common == second.common(first)
    assert (0 if common is None else common.numel) == int((grid == 2).sum())
    assert common is None or bool((grid[common.slices(whole)] == 2).all())

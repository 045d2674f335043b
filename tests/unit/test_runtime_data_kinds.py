"""What may be a job's data: libraries' data sets, and what is said about those that cannot be trained on."""

import gc
import io
import itertools
import tarfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ChainDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.notes import sentences
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import HostSettings, Strategy

NUMBERS = torch.arange(12.0)


def batches_of(data, *, example=lambda n: {"x": torch.zeros(n)}, samples=None, micro_batch=4, accumulation=1, **host):
    job = Job(model=nn.Identity, batch=example, loss=lambda model, batch: batch, data=data, samples=samples)
    return MicroBatchLoader(job, Strategy(micro_batch=micro_batch, accumulation=accumulation), HostSettings(**host))


def x_of(batches, count):
    return [step[0]["x"].tolist() for step in itertools.islice(batches.steps(), count)]


def refused(data, **settings):
    with pytest.raises(JobError) as caught:
        next(batches_of(data, **settings).steps())
    assert caught.value.ways_out
    return caught.value.what


class Rows(Dataset):
    def __init__(self, *rows, count=None):
        self.rows, self.count = rows, len(rows) if count is None else count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.rows[index]


def test_arrays_are_columns():
    for data in (NUMBERS.numpy(), Subset(TensorDataset(NUMBERS), range(3, 12))):
        batches = batches_of(lambda data=data: data, example=lambda n: torch.zeros(n))
        step = next(batches.steps())[0]
        assert (step[0] if isinstance(step, tuple) else step).shape == (4,)
    frozen = NUMBERS.numpy().copy()
    frozen.flags.writeable = False
    assert sorted(itertools.chain(*x_of(batches_of(lambda: {"x": frozen}), 3))) == NUMBERS.tolist()


def test_hugging_face_data_sets():
    datasets = pytest.importorskip("datasets")
    rows = {"x": NUMBERS.tolist(), "ids": [[n, n] for n in range(12)]}
    example = lambda n: {"x": torch.zeros(n), "ids": torch.zeros(n, 2, dtype=torch.int64)}  # noqa: E731
    mapped = datasets.Dataset.from_dict(rows)
    batches = batches_of(lambda: mapped, example=example)
    assert batches.notes == []
    assert sorted(itertools.chain(*x_of(batches, 3))) == NUMBERS.tolist()

    whole = batches_of(lambda: mapped.to_iterable_dataset(num_shards=2), example=example)
    expected = x_of(whole, 2)
    assert whole.notes == []
    assert expected == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert whole.state()["mark"]["offset"] == 8
    resumed = batches_of(lambda: mapped.to_iterable_dataset(num_shards=2), example=example)
    resumed.load(whole.state())
    assert x_of(resumed, 2) == [[8, 9, 10, 11], [0, 1, 2, 3]]


def test_a_shuffle_buffer_of_hugging_faces_is_filled_again_from_the_start():
    datasets = pytest.importorskip("datasets")

    def data():
        return datasets.Dataset.from_dict({"x": list(range(40))}).to_iterable_dataset().shuffle(seed=1, buffer_size=16)

    example = lambda n: {"x": torch.zeros(n, dtype=torch.int64)}  # noqa: E731
    expected = x_of(batches_of(data, example=example), 20)
    assert expected[0] != expected[10] != list(range(4))
    whole = batches_of(data, example=example)
    x_of(whole, 3)
    assert whole.state()["mark"] is None
    resumed = batches_of(data, example=example)
    resumed.load(whole.state())
    assert x_of(resumed, 17) == expected[3:]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_web_datasets(tmp_path):  # which leaves closing its files to the garbage collector
    webdataset = pytest.importorskip("webdataset")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for n in range(12):
            text = str(float(n)).encode()
            info = tarfile.TarInfo(f"{n:03}.txt")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))

    def data():
        files = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
        return files.decode().map(lambda sample: {"x": torch.tensor(float(sample["txt"]))})

    whole = batches_of(data)
    assert x_of(whole, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    resumed = batches_of(data)
    resumed.load(whole.state())
    assert x_of(resumed, 2) == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert "batches, not samples" in refused(
        lambda: data().batched(4, collation_fn=lambda rows: {"x": torch.stack([row["x"] for row in rows])})
    )
    for batches in (whole, resumed):
        batches.close()
    gc.collect()


def test_what_is_not_taken_of_a_loader_is_said():
    sampler = WeightedRandomSampler([1.0] * 12, 12)
    batches = batches_of(lambda: DataLoader(TensorDataset(NUMBERS), sampler=sampler), example=lambda n: (torch.zeros(n),))
    notes = sentences(batches.notes)
    assert "the batch size is the strategy's" in notes[0]
    assert notes[1] == "its WeightedRandomSampler is left out: gpuwise shuffles, each sample once an epoch."


class Pairs(Sampler):
    """Batches chosen by hand."""

    def __iter__(self):
        yield from ([n, n + 6] for n in range(6))


def test_a_loader_with_batches_of_its_own_gives_its_collate_and_is_told():
    loader = DataLoader(
        Rows(*({"x": n} for n in NUMBERS)),
        batch_sampler=Pairs(),
        collate_fn=lambda rows: {"x": 100 + torch.stack([row["x"] for row in rows])},
    )
    batches = batches_of(lambda: loader)
    assert batches.notes[1].text == "its Pairs is left out: gpuwise puts batches together itself."
    assert min(x_of(batches, 1)[0]) >= 100


def test_a_chain_of_parts_without_a_length():

    class Part(IterableDataset):
        def __iter__(self):
            return ({"x": n} for n in NUMBERS)

    parts = ChainDataset([Part(), Part()])
    with pytest.raises(TypeError):
        len(parts)
    assert x_of(batches_of(lambda: parts), 1) == [[0, 1, 2, 3]]


def test_settings_that_nothing_comes_of_are_said():
    notes = sentences(batches_of(lambda: {"x": NUMBERS}, loader_workers=2, prefetch=4, pinned_memory=True).notes)
    assert [note.split(":")[0] for note in notes] == ["no worker processes", "nothing is read ahead", "no pinned memory"]
    assert "no worker processes" in batches_of(lambda: ({"x": n} for n in NUMBERS), loader_workers=2).notes[0].text


def test_samples_of_different_shapes():
    ragged = Rows(*({"x": torch.zeros(3 + index % 2)} for index in range(12)))
    example = lambda n: {"x": torch.zeros(n, 3)}  # noqa: E731
    assert "sample['x'] is [3] in one and [4] in another" in refused(lambda: ragged, example=example, micro_batch=12)
    assert "differ in shape" in refused(lambda: iter(ragged.rows), example=example)
    collate = lambda rows: {"x": torch.cat([row["x"] for row in rows])}  # noqa: E731
    assert batches_of(lambda: DataLoader(ragged, collate_fn=collate), example=example)


def test_samples_of_different_parts():
    rows = Rows(*({"x": torch.zeros(1), **({"y": 1} if index != 5 else {})} for index in range(12)))
    assert "sample['y'] is in some of them only" in refused(lambda: rows, micro_batch=12)


def test_a_sample_that_is_no_tensor():
    assert "sample['x'] of the job's data is a object" in refused(lambda: Rows(*({"x": object()} for _ in range(12))))
    assert "gives no tensors" in refused(lambda: Rows(*("text" for _ in range(12))))


def test_a_length_that_is_not_true():
    what = refused(lambda: Rows(*({"x": n} for n in NUMBERS), count=100), micro_batch=64)
    assert "says it has 100 samples; reading sample" in what
    assert "IndexError" in what


def test_columns_that_are_none():
    assert "whose 'y' is a list" in refused(lambda: {"x": NUMBERS, "y": [1] * 12})
    assert "column 'x' of the job's data cannot be a tensor" in refused(lambda: {"x": np.array(["a"] * 12)})
    assert "neither a dataset nor an iterable" in refused(lambda: 3)


def test_iterables_that_end_early_or_cannot_begin_again():
    assert "has 0 samples" in refused(lambda: iter(()))
    batches = batches_of(lambda: ({"x": n} for n in NUMBERS), samples=50)
    x_of(batches, 5)
    assert batches.notes[-1].text.endswith("had 12 samples, not 50 as was said.")
    once = ({"x": n} for n in NUMBERS)
    with pytest.raises(JobError, match="no samples in epoch 2") as caught:
        x_of(batches_of(lambda: once), 5)
    assert len(caught.value.ways_out) == 2


def test_a_batch_function_that_changes_its_shapes():
    widths = itertools.count(1)
    with pytest.raises(JobError, match=r"changes its shapes: batch\(4\) gave batch\['x'\] of \(4, \d\), then"):
        next(batches_of(None, example=lambda n: {"x": torch.zeros(n, next(widths))}).steps())


def test_the_length_of_an_iterable_counts():
    class Sized(IterableDataset):
        def __iter__(self):
            return iter({"x": n} for n in NUMBERS)

        def __len__(self):
            return 12

    assert batches_of(Sized).micro_batches_per_epoch == 3

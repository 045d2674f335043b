"""Writers besides the log: what they write can be read back, and their failure is not the run's."""

import io
import sys
import types

import pytest

from gpuwise.errors import InputError, MissingDependencyError
from gpuwise.runtime.show.writers import Fanout, TensorBoard, WeightsAndBiases, writer

HEADER = {"job": "<toy>", "seed": 3}


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(folder / "tensorboard"))
    result.Reload()
    return result


def test_tensorboard_gives_back_what_was_written(tmp_path):
    curves = writer("tensorboard", tmp_path)
    curves.open(HEADER)
    for step in (1, 2, 3):
        curves.scalars(step, {"loss": 1 / step, "samples_per_s": 100.0})
    curves.close()
    result = events(tmp_path)
    assert [(e.step, pytest.approx(e.value)) for e in result.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert set(result.Tags()["scalars"]) == {"loss", "samples_per_s"}
    assert b"&lt;toy&gt;" in result.Tensors("run/text_summary")[0].tensor_proto.string_val[0]


def test_tensorboard_shows_repeated_steps_once(tmp_path):
    for header, steps in ((HEADER, (1, 2, 3, 4)), (HEADER | {"resumed_from": 2}, (3, 4, 5))):
        curves = TensorBoard(tmp_path)
        curves.open(header)
        for step in steps:
            curves.scalars(step, {"loss": float(step)})
        curves.close()
    assert [e.step for e in events(tmp_path).Scalars("loss")] == [1, 2, 3, 4, 5]


class FakeWandb(types.ModuleType):
    """What a run of wandb is asked to do."""

    def __init__(self, *, logged_in=False):
        super().__init__("wandb")
        self.logged_in, self.calls = logged_in, []

    def login(self, *, prompt, verify):
        assert not prompt
        return self.logged_in

    Settings = staticmethod(dict)

    def init(self, **options):
        self.calls.append(options)
        return self

    def log(self, values, *, step):
        self.calls.append((step, values))

    def finish(self):
        self.calls.append("finish")


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_is_told_all(tmp_path, wandb):
    curves = writer("wandb", tmp_path)
    curves.open(HEADER)
    curves.scalars(1, {"loss": 0.5})
    curves.close()
    options, *rest = wandb.calls
    assert (options["config"], options["dir"], options["mode"]) == (HEADER, str(tmp_path), "offline")
    assert rest == [(1, {"loss": 0.5}), "finish"]


def test_wandb_is_online_where_the_user_is_logged_in(tmp_path, wandb, monkeypatch):
    wandb.logged_in = True
    WeightsAndBiases(tmp_path, project="mine").open(HEADER)
    assert (wandb.calls[0]["mode"], wandb.calls[0]["project"]) == ("online", "mine")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    WeightsAndBiases(tmp_path).open(HEADER)
    assert wandb.calls[1]["mode"] is None


def test_a_resumed_run_of_wandb_has_its_id(tmp_path, wandb):
    for _ in range(2):
        WeightsAndBiases(tmp_path).open(HEADER)
    first, second = wandb.calls
    assert first["id"] == second["id"]
    (tmp_path / "wandb-id").write_text("../elsewhere")
    WeightsAndBiases(tmp_path).open(HEADER)
    assert wandb.calls[2]["id"].isalnum()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_an_absent_package_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=name) as caught:
        writer(name, tmp_path)
    assert caught.value.ways_out == (f'pip install "gpuwise[{name}]"',)


def test_an_unknown_writer():
    with pytest.raises(InputError, match="unknown writer 'mlflow'"):
        writer("mlflow", ".")


class Listed:
    def __init__(self):
        self.told = []

    def open(self, header):
        self.told.append(header)

    def scalars(self, step, values):
        self.told.append((step, values))

    def close(self):
        self.told.append("closed")


class Broken(Listed):
    def scalars(self, step, values):
        raise ConnectionError("nobody answers")


def test_a_writer_that_raises_is_left_out_and_the_rest_go_on():
    text, good, broken = [], Listed(), Broken()
    fanout = Fanout([broken, good], say=text.append)
    fanout.open(HEADER)
    for step in (1, 2):
        fanout.scalars(step, {"loss": 0.5})
    fanout.close()
    assert text == ["Broken gets nothing more of this run: ConnectionError: nobody answers"]
    assert broken.told == [HEADER]
    assert good.told == [HEADER, (1, {"loss": 0.5}), (2, {"loss": 0.5}), "closed"]


def test_without_writers_nothing_happens(capsys):
    fanout = Fanout([], say=io.StringIO().write)
    fanout.scalars(1, {"loss": 0.5})
    fanout.close()
    assert capsys.readouterr() == ("", "")

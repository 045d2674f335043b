"""A run that stands still: told once, with the stacks of its threads, and told again when it goes on."""

import threading

import pytest

from gpuwise.runtime.health.stall import LEAST_S, MOST_FILES, PATIENCE_S, TICK_S, StallWatch


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


class Watched(StallWatch):
    """A watch that the test moves along, tick by tick."""

    def __init__(self, folder):
        self.clock, self.told = Clock(), []
        super().__init__(folder, tell=self.told.append, clock=self.clock)
        self.step_s = 0.1

    def let(self, seconds, *, beating=None):
        for _ in range(int(seconds / TICK_S)):
            self.clock.now_s += TICK_S
            if beating:
                self.beat(beating)
            self.look()


@pytest.fixture
def watch(tmp_path):
    return Watched(tmp_path)


def test_a_run_that_goes_on_is_left_alone(watch, tmp_path):
    watch.let(10_000, beating="step")
    assert watch.told == []
    assert not (tmp_path / "stalls").exists()


def test_a_stall_is_told_once_with_where_its_threads_stand(watch, tmp_path):
    watch.let(10, beating="data")
    watch.let(LEAST_S)
    assert watch.told == []
    watch.let(10 * LEAST_S)
    (stall,) = watch.told
    assert (stall.phase, stall.over, stall.path) == ("data", False, tmp_path / "stalls" / "1.txt")
    assert LEAST_S < stall.silent_s <= LEAST_S + 2 * TICK_S
    assert stall.text == (
        f"the run has stood still for 1.03 min in its reading of data; where its threads stand is in {stall.path}."
    )
    written = stall.path.read_text()
    assert "silent for 62 s in phase 'data'" in written
    assert "test_runtime_health_stall.py" in written
    assert "test_a_stall_is_told_once_with_where_its_threads_stand" in written


def test_it_is_told_when_the_run_goes_on_and_of_the_next_stall(watch, tmp_path):
    watch.let(10, beating="step")
    watch.let(3 * LEAST_S)
    watch.let(TICK_S, beating="step")
    assert watch.told[1].over
    assert watch.told[1].text == "the run goes on after 3.03 min of silence in its step."
    watch.let(2 * LEAST_S)
    assert [stall.over for stall in watch.told] == [False, True, False]
    assert sorted(path.name for path in (tmp_path / "stalls").iterdir()) == ["1.txt", "2.txt"]


def test_slow_steps_get_more_time(watch):
    watch.step_s = 30.0
    watch.let(10, beating="step")
    watch.let(500)
    assert watch.told == []
    watch.let(200)
    assert len(watch.told) == 1


@pytest.mark.parametrize(
    ("phase", "step_s", "patience_s"),
    [
        ("evaluation", 0.1, PATIENCE_S["evaluation"]),
        ("save", 0.1, PATIENCE_S["save"]),
        ("data", 0.0, LEAST_S),
        ("step", 0.0, PATIENCE_S["first step"]),
    ],
)
def test_what_may_take_long(phase, step_s, patience_s, watch):
    watch.step_s = step_s
    watch.let(TICK_S, beating=phase)
    watch.let(patience_s)
    assert watch.told == []
    watch.let(3 * TICK_S)
    assert watch.told[0].phase == phase


def test_whoever_takes_the_steps_by_hand_may_take_his_time(watch):
    watch.let(TICK_S, beating="caller")
    watch.let(100_000)
    assert watch.told == []
    watch.let(TICK_S, beating="data")
    watch.let(LEAST_S + TICK_S)
    assert watch.told[0].phase == "data"


def test_a_run_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = Watched(None)
    watch.let(10, beating="step")
    watch.let(2 * LEAST_S)
    assert watch.told[0].path is None
    assert not list(tmp_path.iterdir())


def test_a_process_that_was_stopped_itself_has_not_stalled(watch):
    watch.let(10, beating="step")
    watch.clock.now_s += 10_000
    watch.look()
    watch.let(LEAST_S)
    assert watch.told == []
    watch.let(2 * TICK_S)
    assert len(watch.told) == 1


def test_a_disk_that_refuses(watch, tmp_path):
    (tmp_path / "stalls").write_text("in the way")
    watch.let(10, beating="step")
    watch.let(2 * LEAST_S)
    assert watch.told[0].path is None
    assert "threads" not in watch.told[0].text


def test_a_resumed_run_continues_the_numbers_and_they_are_bounded(watch, tmp_path):
    (tmp_path / "stalls").mkdir()
    (tmp_path / "stalls" / "7.txt").write_text("before")
    for _ in range(MOST_FILES + 5):
        watch.let(TICK_S, beating="step")
        watch.let(2 * LEAST_S)
    names = {path.name for path in (tmp_path / "stalls").iterdir()}
    assert names == {f"{n}.txt" for n in range(7, MOST_FILES + 1)}


def test_its_thread_looks_every_tick_and_ends(tmp_path):
    waited, done = [], threading.Event()

    def wait(seconds):
        waited.append(seconds)
        done.set()
        return len(waited) == 3

    with StallWatch(tmp_path, tell=lambda stall: None, wait=wait) as watch:
        assert done.wait(5)
        watch._thread.join(5)
    assert waited == [TICK_S] * 3
    assert not watch._thread.is_alive()


def test_a_stall_in_the_data_names_the_worker_that_is_waited_for(watch):
    watch._waits_for = lambda: "worker process 1 (pid 17)"
    watch.let(10, beating="data")
    watch.let(2 * LEAST_S)
    assert "in its reading of data, which waits for worker process 1 (pid 17); where" in watch.told[0].text
    watch.let(10, beating="step")
    watch.let(2 * LEAST_S)
    assert "worker" not in watch.told[-1].text

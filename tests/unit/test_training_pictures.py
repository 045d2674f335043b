"""The script that makes pictures of a run trains only when it is asked to."""

import pytest
from benchmarks import training_pictures


@pytest.mark.parametrize(("word", "code"), [("--help", 0), ("--halp", 2)])
def test_other_words_train_nothing(word, code, monkeypatch):
    monkeypatch.setattr(training_pictures, "at_a_terminal", None)
    monkeypatch.setattr("sys.argv", ["training_pictures", word])
    with pytest.raises(SystemExit) as ended:
        training_pictures.main()
    assert ended.value.code == code

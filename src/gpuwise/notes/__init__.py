"""What results tell their users in sentences: each kind of note is written once here, and carried as an object.

`job` has the notes on a job and its recording, `step` those on a device and the price of a step, `run` those on a whole run,
`plan` and `rejections` the reasons of a plan, `cpu` those for a CPU's settings.
"""

from gpuwise.notes.note import KINDS, Figure, KindOfNote, Note, all_kinds, of_sentence, sentences, to_dicts

__all__ = ["KINDS", "Figure", "KindOfNote", "Note", "all_kinds", "of_sentence", "sentences", "to_dicts"]

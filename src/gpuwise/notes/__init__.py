"""What results tell their users in sentences: each kind of note is written once here, and carried as an object.

Modules by what their notes are on: a job and its recording (`job`), a device and the price of a step (`step`), a whole run
(`run`), prices (`price`), the reasons of a plan (`plan`, `rejections`), a CPU's settings (`cpu`), a training run and its data
(`training`, `data`), a measurement (`measuring`), an installation (`installation`).
"""

from gpuwise.notes.note import KINDS, Figure, KindOfNote, Note, all_kinds, of_sentence, sentences, to_dicts

__all__ = ["KINDS", "Figure", "KindOfNote", "Note", "all_kinds", "of_sentence", "sentences", "to_dicts"]

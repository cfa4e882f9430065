"""Recordings: folders with the tensors that crossed the cut in a training, for audits that do not train again.

`docs/reference/recording.md` describes such a folder. A user writes it with `privkit.Recorder`, or by hand.
"""

"""Recordings: folders with the tensors that crossed the cut during a training, so that an audit need not train again.

`docs/reference/recording.md` describes such a folder. A user writes it with `privkit.Recorder`, or by hand.
"""

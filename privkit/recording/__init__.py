"""Recordings: folders with the tensors that crossed the cut in a training, for an audit without this training.

`docs/reference/recording.md` describes such a folder. A user writes it with `privkit.Recorder`, or by hand.
"""

"""Recordings: a folder with what crossed the cut in a training, for an audit without that training.

`docs/reference/recording.md` describes the folder. A user writes it with `privkit.Recorder`, or by hand.
"""

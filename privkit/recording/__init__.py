"""Recordings: a folder of what crossed the cut in somebody's training, for an audit without that training.

`docs/reference/recording.md` describes the folder. A user writes it with `privkit.Recorder`, or by hand.
"""

"""Recordings: a folder that holds what crossed the cut in somebody's own training, for an audit without that training.

`docs/reference/recording.md` describes the folder. A user writes it with `privkit.Recorder`, or by hand.
"""

"""The goals of attacks: how an audit runs and scores the attacks on each goal."""

"""Attacks that distinguish members from non-members, by losses or by planted canaries."""

"""Metrics of a guess at a record by what the record is: name -> whether a higher value means a closer guess.

They stand here and not with the domains, because who reads a finished run needs their names and no torch.
"""

from __future__ import annotations

IMAGES = {"mse": False, "psnr": True, "ssim": True}
TOKENS = {"token_accuracy": True, "rouge_l": True, "exact": True}
TABLES = {"cells": True, "dense_error": False, "dense_mse": False, "categories": True}

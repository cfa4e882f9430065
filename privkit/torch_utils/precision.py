"""Whether a device computes matrix products in bfloat16."""

from __future__ import annotations

import torch


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device computes bfloat16: false only for CUDA GPUs before Ampere, which emulate it slowly."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def short_by_default(device: torch.device) -> bool:
    """Whether training on this device uses bfloat16 by default: true on a GPU with native bfloat16."""
    return device.type == "cuda" and computes_bfloat16(device)

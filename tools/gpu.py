#!/usr/bin/env python3
"""Whether this machine has a GPU of NVIDIA's.

    gpu.py          prints the GPUs, or why there are none, and then ends with 69
"""
import os
import shutil
import subprocess
import sys

UNAVAILABLE = 69   # EX_UNAVAILABLE of sysexits.h
DEVICE = "/dev/nvidia0"


def listed():
    """What nvidia-smi says of each GPU: name, driver, memory."""
    if not shutil.which("nvidia-smi"):
        return []
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True,
                               timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in asked.stdout.splitlines() if line.strip()] if asked.returncode == 0 else []


def why_none():
    """Why no program here can use a GPU; empty if it can."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if os.path.exists(DEVICE) or listed():
        return ""
    return f"this machine has no GPU: there is no {DEVICE}, and nvidia-smi lists none"


if __name__ == "__main__":
    reason = why_none()
    print(reason or "\n".join(listed()) or DEVICE)
    sys.exit(UNAVAILABLE if reason else 0)

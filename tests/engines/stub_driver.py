"""A stand-in for the NVIDIA driver's library, so that an engine's own kernels can be loaded where there is no driver.

Every function answers "no device" (100). Loading is all that it is for: nothing is computed with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["stub_driver"]

NAMES = """
cuCtxGetCurrent cuCtxSetCurrent cuDeviceGetAttribute cuDevicePrimaryCtxRetain cuDriverGetVersion
cuGetErrorString cuGetProcAddress_v2 cuMemAddressFree cuMemAddressReserve cuMemCreate
cuMemGetAllocationGranularity cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap cuPointerGetAttribute
cuTensorMapEncodeTiled
""".split()


def stub_driver(folder: Path) -> Path:
    """A folder for LD_LIBRARY_PATH. Compiled by the system's C compiler, or by the one of the package ziglang."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in NAMES))
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    words = [compiler] if compiler else [sys.executable, "-m", "ziglang", "cc"]
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)]
    subprocess.run([*words, *flags], check=True)
    return folder

"""Where the shared facts and data lie beside the repository; absent on a user's machine."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
K3 = SHARED / "data" / "k3"

needs_shared = pytest.mark.skipif(not K3.is_dir(), reason="Moonshot's files are not beside this checkout (../shared)")

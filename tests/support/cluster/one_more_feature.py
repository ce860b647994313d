"""The command of a version that has one more feature, which jobs need whose SGD has momentum."""

from __future__ import annotations

import sys

from cli.main import main
from services.protocol import features
from services.protocol.features import Feature
from services.runtime import process

if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    momentum = Feature("momentum", "9.0", lambda config: bool(config["optimizer"].get("momentum")))
    features.FEATURES = (*features.FEATURES, momentum)
    sys.exit(main())

"""1,797 handwritten digits of 8x8 pixels, small enough to come with the package.

digits.npz holds the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, UCI Machine
Learning Repository, doi 10.24432/C50P49), licensed CC BY 4.0, as it is bundled with scikit-learn: whole numbers 0..16
(pixels set in each 4x4 block), stored as bytes, unchanged otherwise.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from proxfed.data.federated import Dataset


def digits() -> Dataset:
    """Handwritten digits, 64 features scaled to 0..1, 10 classes; every fifth sample is held out (1,438 / 359)."""
    with (files("proxfed.data") / "digits.npz").open("rb") as file, np.load(file) as stored:
        features, labels = stored["features"] / 16, stored["labels"].astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 4
    return Dataset(features[~held_out], labels[~held_out], features[held_out], labels[held_out], 10, "digits")

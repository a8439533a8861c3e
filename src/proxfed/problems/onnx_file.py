"""Export of a trained model to an ONNX file, for runtimes without torch; needs the extra `onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from proxfed.errors import InputError
from proxfed.problems.neural.inputs import Affine
from proxfed.problems.neural.neural import Neural

if TYPE_CHECKING:
    from proxfed.problems.empirical_risk import EmpiricalRisk

__all__ = ["write_onnx"]


class FromSamples(nn.Module):
    """A module that takes raw samples of the data set and scales them as in training."""

    scale: Tensor
    shift: Tensor

    def __init__(self, module: nn.Module, affine: Affine, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module, dtype
        self.changes = any(isinstance(v, Tensor) or v != plain for v, plain in zip(affine, Affine(), strict=True))
        for name, value in affine._asdict().items():
            self.register_buffer(name, torch.as_tensor(value).to(dtype))

    def forward(self, samples: Tensor) -> Tensor:
        A = samples.to(self.dtype)
        return self.module(A * self.scale + self.shift if self.changes else A)


def write_onnx(f: EmpiricalRisk, x: Tensor, path: str | Path) -> None:
    """Write the model x of f as an ONNX file: samples -> scores.

    Parameters
    ----------
    f : Neural or Linear
        The f that the model was trained on.
    x : Tensor
        The parameters, (d,).
    path : str or Path
        The file to write. Its input is 'samples', (k, ...) for any k, unscaled as in the data set; its output is
        'scores', (k, outputs).
    """
    try:
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as e:
        raise InputError("to write ONNX files, install the extra: pip install 'proxfed[onnx]'") from e
    module, stored = f.module(x).cpu(), np.asarray(f.data.features[:2])
    dtype = f.net.takes if isinstance(f, Neural) else f.dtype
    whole = FromSamples(module, f._affine if isinstance(f, Neural) else Affine(), dtype).eval()
    kept = stored.dtype if stored.dtype == np.uint8 or not dtype.is_floating_point else np.float32
    sample = torch.from_numpy(stored.astype(kept))
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        whole, (sample,), str(Path(path)), input_names=["samples"], output_names=["scores"], dynamo=True,
        dynamic_shapes={"samples": {0: batch}}, verbose=False,
    )  # fmt: skip

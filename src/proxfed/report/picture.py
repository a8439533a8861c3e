"""A figure of matplotlib that notebooks display even if pyplot was never imported."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()

"""Laws that every algorithm, regulariser, compressor and topology must obey, put to somebody's own.

    from proxfed.harness.conformance import check_algorithm
    assert check_algorithm(Mine(eta=0.5))

On the command line: `proxfed check ./mine.py:Mine -c eta=0.5`.
"""

from proxfed.harness.conformance.algorithms import check_algorithm
from proxfed.harness.conformance.components import check_compressor, check_regulariser, check_topology
from proxfed.harness.conformance.law import Outcome, Report, Status

__all__ = ["Outcome", "Report", "Status", "check_algorithm", "check_compressor", "check_regulariser", "check_topology"]

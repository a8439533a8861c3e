"""Laws that every algorithm, regulariser, compressor and topology must obey, put to somebody's own.

    from proxfed.harness.conformance import check_algorithm
    assert check_algorithm(Mine(eta=0.5))

On the command line: `proxfed check ./mine.py:Mine -c eta=0.5`.
"""

from proxfed.harness.conformance.algorithms import check_algorithm
from proxfed.harness.conformance.compressors import check_compressor
from proxfed.harness.conformance.law import Outcome, Report, Status
from proxfed.harness.conformance.regularisers import check_regulariser
from proxfed.harness.conformance.topologies import check_topology

__all__ = ["Outcome", "Report", "Status", "check_algorithm", "check_compressor", "check_regulariser", "check_topology"]

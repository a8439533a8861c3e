"""Laws that every algorithm, regulariser, compressor and topology must obey, as tests for your own classes.

    from proxfed.testing import check_algorithm
    assert check_algorithm(Mine(eta=0.5))

On the command line: `proxfed check ./mine.py:Mine -c eta=0.5`.
"""

from proxfed.explained import explain
from proxfed.testing.algorithms import check_algorithm
from proxfed.testing.compressors import check_compressor
from proxfed.testing.law import Outcome, Report, Status
from proxfed.testing.regularisers import check_regulariser
from proxfed.testing.topologies import check_topology

__all__ = ["Outcome", "Report", "Status", "check_algorithm", "check_compressor", "check_regulariser", "check_topology"]


explain(__name__)

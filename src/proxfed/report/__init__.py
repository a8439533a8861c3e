"""What came out of a run: a table for the terminal and one self-contained page for the browser."""

from proxfed.report.page import write_report
from proxfed.report.summary import result_table, rich_table, rich_targets

__all__ = ["result_table", "rich_table", "rich_targets", "write_report"]

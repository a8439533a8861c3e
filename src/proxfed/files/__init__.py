"""Files: atomic writes, checksums, locks, append-only logs (log.py) and pairs of slots (slots.py)."""

from proxfed.files.checksums import (
    SHA256,
    UNREADABLE,
    checked,
    checksum,
    read_tensors,
    sealed,
    tensor_file,
    with_checksum,
)
from proxfed.files.locks import hold, is_held, locked
from proxfed.files.log import Blocks, End, Lines, Log
from proxfed.files.slots import Slots
from proxfed.files.whole import (
    LARGEST_ROWS,
    LARGEST_TEXT,
    Seen,
    file_name,
    flush_folder,
    parse_json,
    private_folder,
    read,
    read_some,
    replace,
    write,
    write_together,
    writing,
)

__all__ = [
    "LARGEST_ROWS",
    "LARGEST_TEXT",
    "SHA256",
    "UNREADABLE",
    "Blocks",
    "End",
    "Lines",
    "Log",
    "Seen",
    "Slots",
    "checked",
    "checksum",
    "file_name",
    "flush_folder",
    "hold",
    "is_held",
    "locked",
    "parse_json",
    "private_folder",
    "read",
    "read_some",
    "read_tensors",
    "replace",
    "sealed",
    "tensor_file",
    "with_checksum",
    "write",
    "write_together",
    "writing",
]

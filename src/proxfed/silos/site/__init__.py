"""The side of an organisation: its rows, what it computes of them and what it keeps."""

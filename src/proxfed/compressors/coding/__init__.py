"""The encoding of compressed messages as bytes."""

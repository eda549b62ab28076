"""The C core: EROFS writer and reader, FastCDC, CRC32C, and their thin wrappers."""

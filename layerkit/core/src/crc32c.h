/* CRC-32C (Castagnoli), as EROFS uses it: no final inversion. */
uint32_t lk_crc32c(uint32_t crc, const uint8_t *data, size_t size);

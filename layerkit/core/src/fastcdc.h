/* Cutting files into chunks: zero runs and FastCDC, exactly as docs/formats/chunking.md says. */
#define LK_CUT_BLOCK 4096
#define LK_CUT_ZERO_RUN 65536
#define LK_CUT_MIN 65536
#define LK_CUT_NORMAL 262144
#define LK_CUT_MAX 1048576

/* Where the cutting of one file stands; all zeros before its first byte. */
struct lk_cut_state {
    uint64_t offset;   /* file offset of the first byte that belongs to no reported piece and no pending zero run */
    uint64_t cut;      /* bytes of the current segment that are already cut */
    uint64_t zeros;    /* bytes of the current zero run that are seen and not reported */
    uint32_t in_zeros; /* 1: inside a zero run that is kept; offset is then block-aligned or the end of the file */
    uint32_t reserved;
};

/* Whether all bytes are zero; an empty range is. */
int lk_is_zero(const uint8_t *data, size_t size);

/* The length of the first FastCDC chunk of data; 0 when it could still grow (fewer than LK_CUT_MAX bytes, no cut in
 * them, not final). An empty final range gives 0 as well. */
size_t lk_fastcdc_cut(const uint8_t *data, size_t size, int final);

/* The first kept zero run in data[from..size); data[0] lies at offset of the file. Sets its start and end and returns 1.
 * Returns 0 when there is none; *start is then the end of the bytes that no later run can claim (size when final).
 * Only runs of at least LK_CUT_ZERO_RUN bytes count. When not final, a run that reaches the end of data ends with its
 * last whole block, and may go on behind it. */
int lk_zero_run(const uint8_t *data, size_t size, size_t from, uint64_t offset, int final, size_t *start, size_t *end);

/* Cuts data, which lies at state->offset of the file, as far as it can be decided. Each piece is a length, with bit 63
 * set where it is all zeros. Stops early when out is full. *consumed bytes need not be shown again. Returns the number
 * of pieces. When not final, size of LK_CUT_MAX + LK_CUT_ZERO_RUN + 2 * LK_CUT_BLOCK always makes progress. */
size_t lk_cut_file(struct lk_cut_state *state, const uint8_t *data, size_t size, int final, uint64_t *out,
                   size_t out_size, size_t *consumed);

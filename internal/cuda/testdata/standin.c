// A stand-in for libcuda and libcublasLt: device memory is the host's, copies are real, and a kernel launch computes
// nothing but is checked against the limits of an RTX 3060. Tests build it with the C compiler that is there.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long word;
typedef int result;
enum { OK = 0, OUT_OF_MEMORY = 2, INVALID = 1, TOO_MANY = 701 };

static word total = 12ull << 30, taken, launches;

result cuInit(unsigned f) { return OK; }
result cuDriverGetVersion(int *v) { *v = 12040; return OK; }
result cuGetErrorName(result e, const char **p) {
    *p = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e == TOO_MANY ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
result cuGetErrorString(result e, const char **p) { *p = e == OUT_OF_MEMORY ? "out of memory" : "beyond the card's limits"; return OK; }
result cuDeviceGetCount(int *n) { *n = 1; return OK; }
result cuDeviceGet(int *d, int i) { *d = i; return OK; }
result cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Stand-in 3060", n); return OK; }
result cuDeviceGetAttribute(int *v, int a, int d) {
    *v = a == 75 ? 8 : a == 76 ? 6 : a == 16 ? 28 : a == 97 ? 99 << 10 : 0;
    return OK;
}
result cuDeviceTotalMem_v2(word *n, int d) { *n = total; return OK; }
result cuDeviceGetUuid(char *u, int d) { memset(u, 7, 16); return OK; }
result cuDevicePrimaryCtxRetain(void **c, int d) { *c = c; return OK; }
result cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
result cuCtxSetCurrent(void *c) { return OK; }
result cuCtxSynchronize(void) { return OK; }
result cuMemGetInfo_v2(word *f, word *t) { *f = total - taken; *t = total; return OK; }
result cuMemAlloc_v2(void **p, word n) {
    if (taken + n > total) return OUT_OF_MEMORY;
    taken += n;
    return posix_memalign(p, 256, n) ? OUT_OF_MEMORY : OK;
}
result cuMemFree_v2(void *p) { free(p); taken = 0; return OK; }
result cuMemAllocHost_v2(void **p, word n) { *p = malloc(n); return OK; }
result cuMemFreeHost(void *p) { free(p); return OK; }
result cuMemcpyHtoDAsync_v2(void *d, const void *s, word n, void *st) { memcpy(d, s, n); return OK; }
result cuMemcpyDtoHAsync_v2(void *d, const void *s, word n, void *st) { memcpy(d, s, n); return OK; }
result cuMemsetD8Async(void *d, unsigned char v, word n, void *st) { memset(d, v, n); return OK; }
result cuStreamCreate(void **s, unsigned f) { *s = s; return OK; }
result cuStreamDestroy_v2(void *s) { return OK; }
result cuStreamSynchronize(void *s) { return OK; }
result cuEventCreate(void **e, unsigned f) { *e = e; return OK; }
result cuEventDestroy_v2(void *e) { return OK; }
result cuEventRecord(void *e, void *s) { return OK; }
result cuEventSynchronize(void *e) { return OK; }
result cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 1; return OK; }
result cuModuleLoadData(void **m, const void *image) { *m = m; return image && *(const char *)image ? OK : INVALID; }
result cuModuleUnload(void *m) { return OK; }

// A function is its allowed dynamic shared memory.
result cuModuleGetFunction(word **f, void *m, const char *name) {
    *f = malloc(sizeof(word));
    **f = 48 << 10;
    return name && *name ? OK : INVALID;
}
result cuFuncSetAttribute(word *f, int a, int v) {
    if (a != 8 || v > 99 << 10) return INVALID;
    *f = v;
    return OK;
}
result cuLaunchKernel(word *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      void *stream, void **params, void **extra) {
    launches++;
    if (!gx || gx > 2147483647u || !gy || gy > 65535 || !gz || gz > 65535 || !bx || bx > 1024 || bx % 32 || shared > *f) return TOO_MANY;
    return params && params[0] ? OK : INVALID;
}

// libcublasLt: one algorithm for everything.
result cublasLtCreate(word *h) { *h = 1; return OK; }
result cublasLtDestroy(word h) { return OK; }
word cublasLtGetVersion(void) { return 120400; }
result cublasLtMatmulDescCreate(word *d, int c, int s) { *d = 1; return OK; }
result cublasLtMatmulDescSetAttribute(word d, int a, const void *p, word n) { return OK; }
result cublasLtMatrixLayoutCreate(word *d, int t, word r, word c, word ld) { *d = 1; return r && c ? OK : INVALID; }
result cublasLtMatmulPreferenceCreate(word *p) { *p = 1; return OK; }
result cublasLtMatmulPreferenceDestroy(word p) { return OK; }
result cublasLtMatmulPreferenceSetAttribute(word p, int a, const void *b, word n) { return OK; }
result cublasLtMatmulAlgoGetHeuristic(word h, word d, word A, word B, word C, word D, word p, int n, char *r, int *found) {
    memset(r, 0, 96 * n);
    *found = 1;
    return OK;
}
result cublasLtMatmul(word h, word d, const void *al, const void *A, word a, const void *B, word b, const void *be, const void *C, word c,
                      void *D, word dd, const void *algo, void *ws, word n, void *stream) {
    return A && B && D && algo && (n == 0 || ws) ? OK : INVALID;
}
const char *cublasLtGetStatusName(result s) { return "CUBLAS_STATUS_INVALID_VALUE"; }
const char *cublasLtGetStatusString(result s) { return "an operand is missing"; }

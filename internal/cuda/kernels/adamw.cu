// The update: the gradients' global norm, and AdamW with fp32 master weights.
#include "common.cuh"

// A piece of one gradient tensor: norm_partial sums one a block.
struct Piece {
    const float *grad;
    long long n;
};

// partial[i] = sum of squares of piece i.
extern "C" __global__ void norm_partial(float *partial, const Piece *pieces) {
    __shared__ float scratch[33];
    Piece p = pieces[blockIdx.x];
    float s = 0.0f;
    long long quads = p.n / 4;
    for (long long i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 g = reinterpret_cast<const float4 *>(p.grad)[i];
        s += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
    for (long long i = quads * 4 + threadIdx.x; i < p.n; i += blockDim.x) s += p.grad[i] * p.grad[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

// norm[0] = sqrt(sum of partial) / loss_scale. One block.
extern "C" __global__ void norm_final(float *norm, const float *partial, int n, float loss_scale) {
    __shared__ float scratch[33];
    float s = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += partial[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) norm[0] = sqrtf(s) / loss_scale;
}

// PyTorch's AdamW: g = grad * min(1, clip/(norm+1e-6)) / loss_scale; w -= lr*decay*w; m, v the running means of g and g*g;
// w -= lr/(1-beta1^t) * m / (sqrt(v/(1-beta2^t)) + eps). A norm that is not finite leaves everything as it was.
// step = lr/(1-beta1^t) and root = sqrt(1-beta2^t) come from the host in double. param elem, master null: param is fp32.
extern "C" __global__ void adamw(elem *param, float *master, float *m, float *v, const float *grad, const float *norm,
                                 long long n, float lr, float step, float root, float beta1, float beta2, float eps,
                                 float decay, float clip, float loss_scale) {
    float total = norm[0];
    if (!(fabsf(total) <= 3.402823466e38f)) return;
    float scale = 1.0f / loss_scale;
    if (clip > 0.0f) scale *= fminf(1.0f, clip / (total + 1e-6f));
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        float g = grad[i] * scale;
        float w = master ? master[i] : to_float(param[i]);
        float mi = beta1 * m[i] + (1.0f - beta1) * g;
        float vi = beta2 * v[i] + (1.0f - beta2) * g * g;
        m[i] = mi;
        v[i] = vi;
        w -= lr * decay * w;
        w -= step * (mi / (sqrtf(vi) / root + eps));
        if (master) master[i] = w;
        from_float(param[i], w);
    }
}

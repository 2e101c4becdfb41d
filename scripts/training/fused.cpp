// What a layer does between its matrix products, on the CPU: row by row, forwards and backwards.
//
// Numbers of the residual stream, gains and their gradients are fp32, all else is bf16, or fp32 too
// if FP32 is defined; every sum is fp32. `D` is a row's length. Backward functions add to the gradients of gains and overwrite the rest.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512BF16__) && !defined(FP32)
#include <immintrin.h>
#define CONVERTS
#endif

#ifdef FP32
using number = float;
#else
using number = uint16_t;  // the bits of a bf16
#endif

static inline float get(float x) { return x; }
static inline float get(uint16_t x) { return std::bit_cast<float>(uint32_t(x) << 16); }
static inline void put(float &to, float x) { to = x; }
static inline void put(uint16_t &to, float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  to = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// y = x / rms(x) (* gain); returns 1 / rms(x).
template <class X>
static inline float norm(const X *x, const float *gain, float *y, long D, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < D; i++) sum += get(x[i]) * get(x[i]);
  const float inverse = 1 / std::sqrt(sum / D + eps);
  if (gain)
#pragma omp simd
    for (long i = 0; i < D; i++) y[i] = get(x[i]) * inverse * gain[i];
  else
#pragma omp simd
    for (long i = 0; i < D; i++) y[i] = get(x[i]) * inverse;
  return inverse;
}

// Gradient of `norm` by x, where dy is that by y.
template <class X>
static inline void norm_backward(const X *x, const float *gain, float inverse, const float *dy,
                                 float *dx, float *dgain, long D) {
  float dot = 0;
  if (gain) {
#pragma omp simd reduction(+ : dot)
    for (long i = 0; i < D; i++) {
      const float unit = get(x[i]) * inverse;
      dgain[i] += dy[i] * unit;
      dot += dy[i] * gain[i] * unit;
    }
    dot /= D;
#pragma omp simd
    for (long i = 0; i < D; i++)
      dx[i] = inverse * (dy[i] * gain[i] - get(x[i]) * inverse * dot);
  } else {
#pragma omp simd reduction(+ : dot)
    for (long i = 0; i < D; i++) dot += dy[i] * get(x[i]) * inverse;
    dot /= D;
#pragma omp simd
    for (long i = 0; i < D; i++) dx[i] = inverse * (dy[i] - get(x[i]) * inverse * dot);
  }
}

template <class X> static inline float inverse_rms(const X *x, long D, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < D; i++) sum += get(x[i]) * get(x[i]);
  return 1 / std::sqrt(sum / D + eps);
}

static void add(const std::vector<float> &from, float *to) {
#pragma omp critical
  for (size_t i = 0; i < from.size(); i++) to[i] += from[i];
}

// e^x for x <= 0 or a little above, to 2e-7 of its value, in a form that compilers turn into vectors.
static inline float exponential(float x) {
  const float y = std::max(x, -87.0f) * 1.44269504f, whole = std::floor(y + 0.5f);
  const float part = y - whole;
  const float power =
      1.0f + part * (0.69314718f + part * (0.24022651f + part * (0.05550411f +
                     part * (0.009618129f + part * (0.0013333558f + part * 0.00015403530f)))));
  return power * std::bit_cast<float>((int32_t(whole) + 127) << 23);
}

static inline float sigmoid(float x) { return 1 / (1 + exponential(std::min(-x, 80.0f))); }
static const float A = 1.5957691216057308f, C = 0.044715f;  // of the tanh form of GELU

// Rows of numbers to fp32 and back, apart from what is computed of them.
static inline void load(const number *x, float *y, long n) {
#pragma omp simd
  for (long i = 0; i < n; i++) y[i] = get(x[i]);
}
static inline void store(const float *x, number *y, long n) {
  long i = 0;
#ifdef CONVERTS
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i *)(y + i), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
#endif
  for (; i < n; i++) put(y[i], x[i]);
}

extern "C" {

void unit(const float *x, number *y, long rows, long D, float eps) {
#pragma omp parallel
  {
    std::vector<float> row(D);
#pragma omp for
    for (long r = 0; r < rows; r++) {
      norm(x + r * D, nullptr, row.data(), D, eps);
      store(row.data(), y + r * D, D);
    }
  }
}

void unit_backward(const float *x, const number *dy, float *dx, long rows, long D, float eps) {
#pragma omp parallel
  {
    std::vector<float> row(D);
#pragma omp for
    for (long r = 0; r < rows; r++) {
      load(dy + r * D, row.data(), D);
      norm_backward(x + r * D, nullptr, inverse_rms(x + r * D, D, eps), row.data(), dx + r * D,
                    nullptr, D);
    }
  }
}

// y = x + norm(a) * gain
void add_norm(const float *x, const number *a, const float *gain, float *y, long rows, long D,
              float eps) {
#pragma omp parallel for
  for (long r = 0; r < rows; r++) {
    norm(a + r * D, gain, y + r * D, D, eps);
#pragma omp simd
    for (long i = 0; i < D; i++) y[r * D + i] += x[r * D + i];
  }
}

void add_norm_backward(const number *a, const float *gain, const float *dy, number *da, float *dgain,
                       long rows, long D, float eps) {
#pragma omp parallel
  {
    std::vector<float> row(D), gains(D);
#pragma omp for
    for (long r = 0; r < rows; r++) {
      norm_backward(a + r * D, gain, inverse_rms(a + r * D, D, eps), dy + r * D, row.data(),
                    gains.data(), D);
      store(row.data(), da + r * D, D);
    }
    add(gains, dgain);
  }
}

// y = (x + norm(norm(a) * gains[0] + norm(b) * gains[1]) * gains[2]) * scalars[place]
void join(const float *x, const number *a, const number *b, const float *gains, const float *scalars,
          float *y, long B, long N, long D, float eps) {
#pragma omp parallel
  {
    std::vector<float> sum(D), other(D);
#pragma omp for
    for (long r = 0; r < B * N; r++) {
      norm(a + r * D, gains, sum.data(), D, eps);
      norm(b + r * D, gains + D, other.data(), D, eps);
#pragma omp simd
      for (long i = 0; i < D; i++) sum[i] += other[i];
      norm(sum.data(), gains + 2 * D, other.data(), D, eps);
      const float scalar = scalars[r % N];
#pragma omp simd
      for (long i = 0; i < D; i++) y[r * D + i] = (x[r * D + i] + other[i]) * scalar;
    }
  }
}

void join_backward(const number *a, const number *b, const float *gains, const float *scalars,
                   const float *dy, float *dx, number *da, number *db, float *dgains, long B,
                   long N, long D, float eps) {
#pragma omp parallel
  {
    std::vector<float> sum(D), other(D), part(D), all(3 * D);
#pragma omp for
    for (long r = 0; r < B * N; r++) {
      const float ia = norm(a + r * D, gains, sum.data(), D, eps);
      const float ib = norm(b + r * D, gains + D, other.data(), D, eps);
      const float scalar = scalars[r % N];
#pragma omp simd
      for (long i = 0; i < D; i++) sum[i] += other[i];
#pragma omp simd
      for (long i = 0; i < D; i++) dx[r * D + i] = dy[r * D + i] * scalar;
      norm_backward(sum.data(), gains + 2 * D, inverse_rms(sum.data(), D, eps), dx + r * D,
                    other.data(), all.data() + 2 * D, D);
      norm_backward(a + r * D, gains, ia, other.data(), part.data(), all.data(), D);
      store(part.data(), da + r * D, D);
      norm_backward(b + r * D, gains + D, ib, other.data(), part.data(), all.data() + D, D);
      store(part.data(), db + r * D, D);
    }
    add(all, dgains);
  }
}

// A row of z holds queries, keys and, where `values`, values of one token. q, k, v are
// [B, heads, N, D]: queries and keys normed, multiplied by gains [2, D] and turned by the angles
// whose cosines and sines are [B, N, D / 2]; values normed. Without values the keys are theirs.
void heads(const number *z, const float *gains, const float *cosine, const float *sine, number *q,
           number *k, number *v, long B, long N, long Q, long K, long D, long values, float eps) {
  const long half = D / 2, width = (Q + K + (values ? K : 0)) * D;
#pragma omp parallel
  {
    std::vector<float> row(D), turned(D);
#pragma omp for
    for (long r = 0; r < B * N; r++) {
      const long b = r / N, n = r % N;
      const float *c = cosine + r * half, *s = sine + r * half;
      for (long h = 0; h < Q + K; h++) {
        norm(z + r * width + h * D, gains + (h < Q ? 0 : D), row.data(), D, eps);
        number *to = h < Q ? q + ((b * Q + h) * N + n) * D : k + ((b * K + h - Q) * N + n) * D;
#pragma omp simd
        for (long i = 0; i < half; i++) {
          turned[i] = row[i] * c[i] - row[i + half] * s[i];
          turned[i + half] = row[i + half] * c[i] + row[i] * s[i];
        }
        store(turned.data(), to, D);
      }
      for (long h = 0; h < K; h++) {
        norm(z + r * width + (Q + h + (values ? K : 0)) * D, nullptr, row.data(), D, eps);
        number *to = v + ((b * K + h) * N + n) * D;
        store(row.data(), to, D);
      }
    }
  }
}

void heads_backward(const number *z, const float *gains, const float *cosine, const float *sine,
                    const number *dq, const number *dk, const number *dv, number *dz, float *dgains,
                    long B, long N, long Q, long K, long D, long values, float eps) {
  const long half = D / 2, width = (Q + K + (values ? K : 0)) * D;
#pragma omp parallel
  {
    std::vector<float> dy(D), dx(D), all(2 * D);
#pragma omp for
    for (long r = 0; r < B * N; r++) {
      const long b = r / N, n = r % N;
      const float *c = cosine + r * half, *s = sine + r * half;
      for (long h = 0; h < Q + K; h++) {
        const number *from = h < Q ? dq + ((b * Q + h) * N + n) * D : dk + ((b * K + h - Q) * N + n) * D;
        const number *x = z + r * width + h * D;
        const long kind = h < Q ? 0 : D;
#pragma omp simd
        for (long i = 0; i < half; i++) {
          dy[i] = get(from[i]) * c[i] + get(from[i + half]) * s[i];
          dy[i + half] = get(from[i + half]) * c[i] - get(from[i]) * s[i];
        }
        norm_backward(x, gains + kind, inverse_rms(x, D, eps), dy.data(), dx.data(),
                      all.data() + kind, D);
        store(dx.data(), dz + r * width + h * D, D);
      }
      for (long h = 0; h < K; h++) {
        const number *from = dv + ((b * K + h) * N + n) * D;
        const long at = r * width + (Q + h + (values ? K : 0)) * D;
        load(from, dy.data(), D);
        norm_backward(z + at, nullptr, inverse_rms(z + at, D, eps), dy.data(), dx.data(), nullptr, D);
        if (values)
          store(dx.data(), dz + at, D);
        else
#pragma omp simd
          for (long i = 0; i < D; i++) put(dz[at + i], get(dz[at + i]) + dx[i]);
      }
    }
    add(all, dgains);
  }
}

// Softmax in place, of rows of scores [B, heads, N, M]. Row n of sample b sees the keys of two
// ranges, spans[b, n] = first, end, first, end; what it does not see becomes 0.
void softmax(number *scores, const int32_t *spans, long B, long H, long N,
             long M) {
#pragma omp parallel
  {
    std::vector<float> row(M);
#pragma omp for
    for (long r = 0; r < B * H * N; r++) {
      const int32_t *span = spans + (r / (H * N) * N + r % N) * 4;
      number *x = scores + r * M;
      float most = -1e30f, sum = 0;
      for (int part = 0; part < 4; part += 2)
#pragma omp simd reduction(max : most)
        for (long i = span[part]; i < span[part + 1]; i++) most = std::max(most, get(x[i]));
      for (int part = 0; part < 4; part += 2)
#pragma omp simd reduction(+ : sum)
        for (long i = span[part]; i < span[part + 1]; i++) {
          row[i] = exponential(get(x[i]) - most);
          sum += row[i];
        }
      const float share = 1 / sum;
      std::memset(x, 0, M * sizeof(number));
      for (int part = 0; part < 4; part += 2) {
#pragma omp simd
        for (long i = span[part]; i < span[part + 1]; i++) row[i] *= share;
        store(row.data() + span[part], x + span[part], span[part + 1] - span[part]);
      }
    }
  }
}

// dp becomes the gradient by the scores; p are the softmax's results.
void softmax_backward(const number *p, number *dp, const int32_t *spans, long B, long H,
                      long N, long M) {
#pragma omp parallel
  {
    std::vector<float> row(M);
#pragma omp for
    for (long r = 0; r < B * H * N; r++) {
      const int32_t *span = spans + (r / (H * N) * N + r % N) * 4;
      const number *x = p + r * M;
      number *dx = dp + r * M;
      float dot = 0;
      for (int part = 0; part < 4; part += 2)
#pragma omp simd reduction(+ : dot)
        for (long i = span[part]; i < span[part + 1]; i++) dot += get(x[i]) * get(dx[i]);
      for (int part = 0; part < 4; part += 2)
#pragma omp simd
        for (long i = span[part]; i < span[part + 1]; i++) row[i] = get(x[i]) * (get(dx[i]) - dot);
      std::memset(dx, 0, M * sizeof(number));
      for (int part = 0; part < 4; part += 2)
        store(row.data() + span[part], dx + span[part], span[part + 1] - span[part]);
    }
  }
}

// A row of z holds gate and up [M] of the dense MLP, gate and up [m] of every expert, and the
// router's E scores; `width` numbers in all. The k best experts count, by the softmax of their
// scores times `scales`.
static void route(const number *scores, long E, long k, float *share) {
  float most = -1e30f, sum = 0;
  std::fill(share, share + E, 0.0f);
  for (long rank = 0; rank < k; rank++) {
    long best = -1;
    for (long e = 0; e < E; e++)
      if (share[e] == 0 && (best < 0 || get(scores[e]) > get(scores[best]))) best = e;
    most = std::max(most, get(scores[best]));
    share[best] = std::max(std::exp(get(scores[best]) - most), 1e-30f);
    sum += share[best];
  }
  for (long e = 0; e < E; e++) share[e] /= sum;
}

// y = gelu(z[0:n]) * z[n:2n] * c
static inline void gated(const number *z, float c, float *row, number *y, long n) {
#pragma omp simd
  for (long i = 0; i < n; i++) {
    const float x = get(z[i]);
    row[i] = x * sigmoid(A * (x + C * x * x * x)) * get(z[n + i]) * c;
  }
  store(row, y, n);
}

// Returns the gradient by c.
static inline float gated_backward(const number *z, float c, const number *dy, float *row, number *dz,
                                   long n) {
  float dc = 0;
#pragma omp simd reduction(+ : dc)
  for (long i = 0; i < n; i++) {
    const float x = get(z[i]), up = get(z[n + i]), d = get(dy[i]);
    const float s = sigmoid(A * (x + C * x * x * x));
    row[i] = d * c * up * (s + x * s * (1 - s) * A * (1 + 3 * C * x * x));
    row[n + i] = d * c * x * s;
    dc += d * x * s * up;
  }
  store(row, dz, 2 * n);
  return dc;
}

void gate(const number *z, const float *scales, number *dense, number *routed, long rows, long width,
          long M, long E, long m, long k) {
#pragma omp parallel
  {
    std::vector<float> share(E + 1), row(std::max(M, m));
#pragma omp for
    for (long r = 0; r < rows; r++) {
      const number *g = z + r * width, *experts = g + 2 * M;
      gated(g, 1, row.data(), dense + r * M, M);
      if (E) route(experts + 2 * E * m, E, k, share.data());
      for (long e = 0; e < E; e++)
        gated(experts + 2 * e * m, share[e] * scales[e], row.data(), routed + (r * E + e) * m, m);
    }
  }
}

void gate_backward(const number *z, const float *scales, const number *ddense, const number *drouted,
                   number *dz, float *dscales, long rows, long width, long M, long E, long m,
                   long k) {
#pragma omp parallel
  {
    std::vector<float> share(E + 1), dshare(E + 1), all(E), row(2 * std::max(M, m));
#pragma omp for
    for (long r = 0; r < rows; r++) {
      const number *g = z + r * width, *experts = g + 2 * M;
      number *dg = dz + r * width, *dexperts = dg + 2 * M;
      gated_backward(g, 1, ddense + r * M, row.data(), dg, M);
      std::fill(dexperts + 2 * E * m + E, dg + width, number(0));
      if (!E) continue;
      route(experts + 2 * E * m, E, k, share.data());
      float dot = 0;
      for (long e = 0; e < E; e++) {
        const float dc = gated_backward(experts + 2 * e * m, share[e] * scales[e],
                                        drouted + (r * E + e) * m, row.data(), dexperts + 2 * e * m, m);
        all[e] += dc * share[e];
        dshare[e] = dc * scales[e];
        dot += dshare[e] * share[e];
      }
      number *dscores = dexperts + 2 * E * m;
      for (long e = 0; e < E; e++) put(dscores[e], share[e] * (dshare[e] - dot));
    }
    add(all, dscales);
  }
}
}

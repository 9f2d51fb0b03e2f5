// The numbers that everything else computes with: one trajectory per CUDA thread, or a pack of
// GS_LANES trajectories per SIMD register on a CPU.
//
// All code above this file is written once, in terms of lane types and masks. With GS_LANES == 1
// (always on CUDA) F64 is double and Mask is bool, and the compiler sees ordinary scalar code.
// Otherwise F64 is a pack of GS_LANES doubles and Mask a pack of flags.
//
// Nothing here may be contracted or reassociated: the compiler is told so (-ffp-contract=off,
// --fmad=false), and a fused multiply-add is written fma(). A function then rounds the same way
// wherever it is inlined, which is what makes a replay reproduce its recording bit for bit.

#pragma once

#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
#define GS_CUDA 1
#undef GS_LANES
#define GS_LANES 1
#define GS_FN __device__ __forceinline__
#define GS_NOINLINE __device__ __noinline__
#define GS_LAMBDA
#else
#define GS_CUDA 0
#define GS_FN inline __attribute__((always_inline))
#define GS_NOINLINE __attribute__((noinline))
#define GS_LAMBDA __attribute__((always_inline))
#endif

// Before a loop over the lanes of a pack that is worth its copies: -O2 copies no loop by itself.
// Not where one instruction does it for all, such as a square root: GCC finds that in loops only.
#if GS_CUDA
#define GS_UNROLLED
#else
#define GS_UNROLLED _Pragma("GCC unroll 16")
#endif

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <stdint.h>

#include <cmath>
#endif

// Bits of the state's real type; a unit for float32 states says 32.
#ifndef GS_REAL_BITS
#define GS_REAL_BITS 64
#endif

// As many lanes as the widest register holds.
#ifndef GS_LANES
#if defined(__AVX512F__)
#define GS_LANES (512 / GS_REAL_BITS)
#elif defined(__AVX__)
#define GS_LANES (256 / GS_REAL_BITS)
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define GS_LANES (128 / GS_REAL_BITS)
#else
#define GS_LANES 1
#endif
#endif

namespace gs {

// ---- Compile-time loops ------------------------------------------------------------------------

template <int I>
struct Index {
  static constexpr int value = I;
  GS_FN constexpr operator int() const { return I; }
};

template <int... I>
struct Indices {};

template <int N, int... I>
struct IndicesBelow : IndicesBelow<N - 1, N - 1, I...> {};

template <int... I>
struct IndicesBelow<0, I...> {
  using upwards = Indices<I...>;
};

template <int N, int... I>
struct IndicesDown : IndicesDown<N - 1, I..., N - 1> {};

template <int... I>
struct IndicesDown<0, I...> {
  using downwards = Indices<I...>;
};

// All calls side by side: calls inside calls would be inlined into one another, and take the
// compiler a time that grows with the square of their number.
template <class F, int... I>
GS_FN void call_with(F&& f, Indices<I...>) {
  (f(Index<I>{}), ...);
}

// f(Index<0>), ..., f(Index<N - 1>): the index is a constant inside f.
template <int N, class F>
GS_FN void static_for(F&& f) {
  call_with(f, typename IndicesBelow<N>::upwards{});
}

// f(Index<N - 1>), ..., f(Index<0>).
template <int N, class F>
GS_FN void static_for_down(F&& f) {
  call_with(f, typename IndicesDown<N>::downwards{});
}

// f(0), ..., f(n - 1), for an n that is a constant (an Index) or not; then so are the numbers.
template <int N, class F>
GS_FN void for_below(Index<N>, F&& f) {
  static_for<N>(f);
}
template <class F>
GS_FN void for_below(int n, F&& f) {
  for (int i = 0; i < n; ++i) f(i);
}

// A loop over the components of a state: unrolled, so that they live in registers, if they are few.
// How many that are depends on the method and the system: a unit says it (unrolling.py).
#ifndef GS_UNROLLED_ON_CPU
#define GS_UNROLLED_ON_CPU 16
#endif
#ifndef GS_UNROLLED_ON_GPU
#define GS_UNROLLED_ON_GPU 16
#endif
constexpr int kMaxUnrolled = GS_CUDA ? GS_UNROLLED_ON_GPU : GS_UNROLLED_ON_CPU;

template <int N, class F>
GS_FN void for_each(F&& f) {
  if constexpr (N <= kMaxUnrolled) {
    static_for<N>(f);
  } else {
    for (int i = 0; i < N; ++i) f(i);
  }
}

// f(c, W) for the components c, ..., c + W - 1: those of a large system four at a time, so that a
// weight that is looked up serves several, and none waits for another.
template <int N, class F>
GS_FN void for_components(F&& f) {
  if constexpr (N <= kMaxUnrolled) {
    static_for<N>([&](auto c) GS_LAMBDA { f(c, Index<1>{}); });
  } else {
    constexpr int left_over = N % 4;
    for (int c = 0; c < N - left_over; c += 4) f(c, Index<4>{});
    if constexpr (left_over > 0) f(N - left_over, Index<left_over>{});
  }
}

// ---- Lane types --------------------------------------------------------------------------------

#if GS_LANES == 1

using F32 = float;
using F64 = double;
using I32 = int32_t;
using I64 = int64_t;
using U32 = uint32_t;
using U64 = uint64_t;
using Mask = bool;

template <class T>
struct ScalarOf {
  using type = T;
};

GS_FN bool any(bool m) { return m; }
GS_FN bool all(bool m) { return m; }

template <class T>
GS_FN T select(bool m, T a, T b) {
  return m ? a : b;
}

template <class To, class From>
GS_FN To convert(From x) {
  return static_cast<To>(x);
}

template <class To, class From>
GS_FN To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
  return __builtin_bit_cast(To, x);
}

template <class T>
GS_FN T lane(T x, int) {
  return x;
}
template <class T>
GS_FN void set_lane(T& x, int, T v) {
  x = v;
}

template <class F, class T>
GS_FN T map(F&& f, T x) {
  return f(x);
}
template <class F, class T>
GS_FN T map(F&& f, T x, T y) {
  return f(x, y);
}

#if GS_CUDA
GS_FN double fma(double a, double b, double c) { return ::fma(a, b, c); }
GS_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
GS_FN double sqrt(double x) { return ::sqrt(x); }
GS_FN float sqrt(float x) { return ::sqrtf(x); }
GS_FN double floor(double x) { return ::floor(x); }
GS_FN float floor(float x) { return ::floorf(x); }
GS_FN double abs(double x) { return ::fabs(x); }
GS_FN float abs(float x) { return ::fabsf(x); }
#else
// Without the instruction fma() would be a slow library call; then the product is rounded.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
GS_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
GS_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
GS_FN double fma(double a, double b, double c) { return a * b + c; }
GS_FN float fma(float a, float b, float c) { return a * b + c; }
#endif
GS_FN double sqrt(double x) { return __builtin_sqrt(x); }
GS_FN float sqrt(float x) { return __builtin_sqrtf(x); }
GS_FN double floor(double x) { return __builtin_floor(x); }
GS_FN float floor(float x) { return __builtin_floorf(x); }
GS_FN double abs(double x) { return __builtin_fabs(x); }
GS_FN float abs(float x) { return __builtin_fabsf(x); }
#endif
GS_FN int32_t abs(int32_t x) {
  return static_cast<int32_t>(x < 0 ? 0u - static_cast<uint32_t>(x) : static_cast<uint32_t>(x));
}
GS_FN int64_t abs(int64_t x) {
  return static_cast<int64_t>(x < 0 ? 0ull - static_cast<uint64_t>(x) : static_cast<uint64_t>(x));
}

#else  // packs

template <int Bytes>
struct SignedOfSize;
template <>
struct SignedOfSize<1> {
  using type = int8_t;
};
template <>
struct SignedOfSize<4> {
  using type = int32_t;
};
template <>
struct SignedOfSize<8> {
  using type = int64_t;
};

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(GS_LANES * sizeof(T))));
};

// One flag per lane: all bits set or none, as wide as the state's real type.
struct Mask {
  using Scalar = bool;
  using Bits = SignedOfSize<GS_REAL_BITS / 8>::type;
  using Vector = VectorOf<Bits>::type;
  Vector v;

  Mask() = default;
  GS_FN Mask(bool flag) : v(Vector{} - static_cast<Bits>(flag)) {}
  GS_FN explicit Mask(Vector bits) : v(bits) {}
  template <class V>
  GS_FN static Mask of(V bits) {
    return Mask(__builtin_convertvector(bits, Vector));
  }
};

GS_FN Mask operator&(Mask a, Mask b) { return Mask(a.v & b.v); }
GS_FN Mask operator|(Mask a, Mask b) { return Mask(a.v | b.v); }
GS_FN Mask operator^(Mask a, Mask b) { return Mask(a.v ^ b.v); }
GS_FN Mask operator!(Mask a) { return Mask(~a.v); }
GS_FN Mask operator==(Mask a, Mask b) { return Mask(~(a.v ^ b.v)); }
GS_FN Mask operator!=(Mask a, Mask b) { return a ^ b; }

GS_FN bool any(Mask m) {
#if defined(__AVX__) && !defined(__AVX512F__) && GS_LANES * GS_REAL_BITS == 256
  // One bit per 32 bits: of a flag of 64 bits, all or none are set.
  typedef float Bits __attribute__((vector_size(32)));
  return __builtin_ia32_movmskps256((Bits)m.v) != 0;
#elif defined(__SSE2__) && GS_LANES * GS_REAL_BITS == 128
  typedef float Bits __attribute__((vector_size(16)));
  return __builtin_ia32_movmskps((Bits)m.v) != 0;
#else
  Mask::Bits r = 0;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) r |= m.v[l];
  return r != 0;
#endif
}
GS_FN bool all(Mask m) { return !any(!m); }

template <class T>
struct Pack {
  using Scalar = T;
  using Vector = typename VectorOf<T>::type;
  Vector v;

  Pack() = default;
  // x - 0 keeps the sign of a negative zero, 0 + x would not.
  GS_FN Pack(T x) : v(x - Vector{}) {}
  GS_FN explicit Pack(Vector x) : v(x) {}

  friend GS_FN Pack operator+(Pack a, Pack b) { return Pack(a.v + b.v); }
  friend GS_FN Pack operator-(Pack a, Pack b) { return Pack(a.v - b.v); }
  friend GS_FN Pack operator*(Pack a, Pack b) { return Pack(a.v * b.v); }
  friend GS_FN Pack operator/(Pack a, Pack b) { return Pack(a.v / b.v); }
  friend GS_FN Pack operator-(Pack a) { return Pack(-a.v); }
  friend GS_FN Mask operator<(Pack a, Pack b) { return Mask::of(a.v < b.v); }
  friend GS_FN Mask operator<=(Pack a, Pack b) { return Mask::of(a.v <= b.v); }
  friend GS_FN Mask operator>(Pack a, Pack b) { return Mask::of(a.v > b.v); }
  friend GS_FN Mask operator>=(Pack a, Pack b) { return Mask::of(a.v >= b.v); }
  friend GS_FN Mask operator==(Pack a, Pack b) { return Mask::of(a.v == b.v); }
  friend GS_FN Mask operator!=(Pack a, Pack b) { return Mask::of(a.v != b.v); }
  // Integers only.
  friend GS_FN Pack operator&(Pack a, Pack b) { return Pack(a.v & b.v); }
  friend GS_FN Pack operator|(Pack a, Pack b) { return Pack(a.v | b.v); }
  friend GS_FN Pack operator^(Pack a, Pack b) { return Pack(a.v ^ b.v); }
  friend GS_FN Pack operator~(Pack a) { return Pack(~a.v); }
  friend GS_FN Pack operator<<(Pack a, Pack b) { return Pack(a.v << b.v); }
  friend GS_FN Pack operator>>(Pack a, Pack b) { return Pack(a.v >> b.v); }
};

using F32 = Pack<float>;
using F64 = Pack<double>;
using I32 = Pack<int32_t>;
using I64 = Pack<int64_t>;
using U32 = Pack<uint32_t>;
using U64 = Pack<uint64_t>;

template <class T>
struct ScalarOf {
  using type = typename T::Scalar;
};

template <class T>
GS_FN T lane(Pack<T> x, int l) {
  return x.v[l];
}
template <class T>
GS_FN void set_lane(Pack<T>& x, int l, T v) {
  x.v[l] = v;
}
GS_FN bool lane(Mask m, int l) { return m.v[l] != 0; }
GS_FN void set_lane(Mask& m, int l, bool v) { m.v[l] = -static_cast<Mask::Bits>(v); }

template <class T>
GS_FN Pack<T> select(Mask m, Pack<T> a, Pack<T> b) {
  using Bits = typename VectorOf<typename SignedOfSize<sizeof(T)>::type>::type;
  return Pack<T>(__builtin_convertvector(m.v, Bits) ? a.v : b.v);
}
GS_FN Mask select(Mask m, Mask a, Mask b) { return Mask((m.v & a.v) | (~m.v & b.v)); }

namespace detail {
template <class To, class From>
struct Convert {
  GS_FN static To apply(From x) { return To(__builtin_convertvector(x.v, typename To::Vector)); }
};
template <class T>
struct Convert<T, T> {
  GS_FN static T apply(T x) { return x; }
};
template <class To>
struct Convert<To, Mask> {
  GS_FN static To apply(Mask m) { return select(m, To(1), To(0)); }
};
template <class From>
struct Convert<Mask, From> {
  GS_FN static Mask apply(From x) { return x != From(0); }
};
template <>
struct Convert<Mask, Mask> {
  GS_FN static Mask apply(Mask m) { return m; }
};
}  // namespace detail

template <class To, class From>
GS_FN To convert(From x) {
  return detail::Convert<To, From>::apply(x);
}

template <class To, class From>
GS_FN To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast between sizes");
  return To((typename To::Vector)x.v);
}

template <class F, class T>
GS_FN Pack<T> map(F&& f, Pack<T> x) {
  Pack<T> out;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) out.v[l] = f(T(x.v[l]));
  return out;
}
template <class F, class T>
GS_FN Pack<T> map(F&& f, Pack<T> x, Pack<T> y) {
  Pack<T> out;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) out.v[l] = f(T(x.v[l]), T(y.v[l]));
  return out;
}

// One vector instruction. Compilers have different names for it; where none is known, a loop over
// the lanes becomes the same instruction, only more slowly while compiling.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__)
GS_FN F64 fma(F64 a, F64 b, F64 c) {
#if __has_builtin(__builtin_elementwise_fma)
  return F64(__builtin_elementwise_fma(a.v, b.v, c.v));
#elif __has_builtin(__builtin_ia32_vfmaddpd256) && GS_LANES == 4
  return F64(__builtin_ia32_vfmaddpd256(a.v, b.v, c.v));
#elif __has_builtin(__builtin_ia32_vfmaddpd512_mask) && defined(__AVX512F__) && GS_LANES == 8
  return F64(__builtin_ia32_vfmaddpd512_mask(a.v, b.v, c.v, -1, 4));
#else
  F64 out;
  for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_fma(a.v[l], b.v[l], c.v[l]);
  return out;
#endif
}
GS_FN F32 fma(F32 a, F32 b, F32 c) {
#if __has_builtin(__builtin_elementwise_fma)
  return F32(__builtin_elementwise_fma(a.v, b.v, c.v));
#elif __has_builtin(__builtin_ia32_vfmaddps256) && GS_LANES == 8
  return F32(__builtin_ia32_vfmaddps256(a.v, b.v, c.v));
#elif __has_builtin(__builtin_ia32_vfmaddps512_mask) && defined(__AVX512F__) && GS_LANES == 16
  return F32(__builtin_ia32_vfmaddps512_mask(a.v, b.v, c.v, -1, 4));
#elif __has_builtin(__builtin_ia32_vfmaddps) && GS_LANES == 4
  return F32(__builtin_ia32_vfmaddps(a.v, b.v, c.v));
#else
  F32 out;
  for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_fmaf(a.v[l], b.v[l], c.v[l]);
  return out;
#endif
}
#else
GS_FN F64 fma(F64 a, F64 b, F64 c) { return a * b + c; }
GS_FN F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
#endif
GS_FN F64 sqrt(F64 x) {
  F64 out;
  for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_sqrt(x.v[l]);
  return out;
}
GS_FN F32 sqrt(F32 x) {
  F32 out;
  for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_sqrtf(x.v[l]);
  return out;
}
GS_FN F64 floor(F64 x) {
  F64 out;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_floor(x.v[l]);
  return out;
}
GS_FN F32 floor(F32 x) {
  F32 out;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) out.v[l] = __builtin_floorf(x.v[l]);
  return out;
}
GS_FN F64 abs(F64 x) { return F64((F64::Vector)((I64::Vector)x.v & INT64_MAX)); }
GS_FN F32 abs(F32 x) { return F32((F32::Vector)((I32::Vector)x.v & INT32_MAX)); }
GS_FN I64 abs(I64 x) { return select(x < I64(0), -x, x); }
GS_FN I32 abs(I32 x) { return select(x < I32(0), -x, x); }

#endif  // packs

template <class T>
using scalar_of = typename ScalarOf<T>::type;

// min and max propagate nan, as in JAX.
template <class T>
GS_FN T max(T a, T b) {
  return select((a > b) | (a != a), a, b);
}
template <class T>
GS_FN T min(T a, T b) {
  return select((a < b) | (a != a), a, b);
}

template <class T>
GS_FN Mask is_finite(T x) {
#if GS_CUDA
  // On the integers of the exponent: a GPU has more of those to give than of double precision.
  if constexpr (sizeof(T) == 8) {
    constexpr uint32_t exponent = 0x7ff00000u;
    return (static_cast<uint32_t>(bit_cast<uint64_t>(x) >> 32) & exponent) != exponent;
  }
#endif
  return x - x == T(0);
}

#if GS_REAL_BITS == 64
using Real = F64;
#else
using Real = F32;
#endif
using Scalar = scalar_of<Real>;

// The one spelling that g++, clang and NVRTC all have.
constexpr Scalar kInfinity = static_cast<Scalar>(__builtin_bit_cast(double, 0x7ff0000000000000ull));
constexpr Scalar kNan = static_cast<Scalar>(__builtin_bit_cast(double, 0x7ff8000000000000ull));

// The same number, but the compiler cannot tell: what is computed from it is computed again rather
// than kept in registers since it was last computed.
GS_FN Real hidden(Real x) {
#if GS_CUDA && GS_REAL_BITS == 64
  asm("" : "+d"(x));
#elif GS_CUDA
  asm("" : "+f"(x));
#endif
  return x;
}

// ---- Lanes in memory ---------------------------------------------------------------------------

// Which trajectories the lanes of one pack are. Lanes past the end of the ensemble repeat its last
// trajectory and are not valid: they are never stored, and have no steps in a mesh.
struct Lanes {
  int64_t first;
  int64_t total;
  Mask valid;
  bool full;
};

GS_FN Lanes lanes_from(int64_t first, int64_t total) {
  Lanes out;
  out.first = first;
  out.total = total;
  out.full = first + GS_LANES <= total;
#if GS_LANES == 1
  out.valid = out.full;
  if (!out.full) out.first = total - 1;
#else
  for (int l = 0; l < GS_LANES; ++l) set_lane(out.valid, l, first + l < total);
#endif
  return out;
}

GS_FN int64_t index_of(const Lanes& lanes, int l) {
  const int64_t i = lanes.first + l;
  return i < lanes.total ? i : lanes.total - 1;
}

// Where entry `entry` of row `row` of trajectory `i` lies in an array [rows][size][ensemble].
GS_FN int64_t place(int32_t row, int64_t i, const Lanes& lanes, int size, int entry) {
  return (static_cast<int64_t>(row) * size + entry) * lanes.total + i;
}

// Asks for what load_rows() with the same arguments will read.
template <class S>
GS_FN void prefetch([[maybe_unused]] const S* array, [[maybe_unused]] I32 row,
                    [[maybe_unused]] const Lanes& lanes, [[maybe_unused]] int size,
                    [[maybe_unused]] int entry) {
#if GS_CUDA
  asm volatile(
      "prefetch.global.L1 [%0];" ::"l"(array + place(row, lanes.first, lanes, size, entry)));
#endif
}

// Row `row` of an array of shape [rows][ensemble], one entry per lane. Flags are stored as bytes.
#if GS_LANES == 1
template <class T, class S>
GS_FN T load(const S* array, int64_t row, const Lanes& lanes) {
  return static_cast<T>(array[row * lanes.total + lanes.first]);
}
template <class S, class T>
GS_FN void store(S* array, int64_t row, const Lanes& lanes, T x) {
  if (lanes.valid) array[row * lanes.total + lanes.first] = static_cast<S>(x);
}
// The same with a row per lane, in an array [rows][size][ensemble], for the lanes of a mask.
template <class T, class S>
GS_FN T load_rows(const S* array, I32 row, const Lanes& lanes, int size = 1, int entry = 0) {
  return static_cast<T>(array[place(row, lanes.first, lanes, size, entry)]);
}
template <class S, class T>
GS_FN void store_rows(Mask where, S* array, I32 row, const Lanes& lanes, T x, int size = 1,
                      int entry = 0) {
  if (where & lanes.valid) {
    array[place(row, lanes.first, lanes, size, entry)] = static_cast<S>(x);
  }
}
GS_FN int32_t highest(I32 x) { return x; }
// The state of each lane in an array of shape [ensemble][dim].
template <int N>
GS_FN void load_state(const Scalar* array, const Lanes& lanes, Real* y) {
  for_each<N>([&](auto c) GS_LAMBDA { y[c] = array[lanes.first * N + c]; });
}
template <int N>
GS_FN void store_state(Scalar* array, const Lanes& lanes, const Real* y) {
  if (!lanes.valid) return;
  for_each<N>([&](auto c) GS_LAMBDA { array[lanes.first * N + c] = y[c]; });
}
#else
template <class T, class S>
GS_FN T load(const S* array, int64_t row, const Lanes& lanes) {
  const S* at = array + row * lanes.total;
  T out;
  if constexpr (GS_LANES * sizeof(S) == sizeof(out.v)) {
    if (lanes.full) {
      __builtin_memcpy(&out.v, at + lanes.first, sizeof(out.v));
      return out;
    }
  }
  for (int l = 0; l < GS_LANES; ++l) {
    set_lane(out, l, static_cast<scalar_of<T> >(at[index_of(lanes, l)]));
  }
  return out;
}
template <class S, class T>
GS_FN void store(S* array, int64_t row, const Lanes& lanes, T x) {
  S* at = array + row * lanes.total + lanes.first;
  if constexpr (GS_LANES * sizeof(S) == sizeof(x.v)) {
    if (lanes.full) {
      __builtin_memcpy(at, &x.v, sizeof(x.v));
      return;
    }
  }
  for (int l = 0; l < GS_LANES; ++l) {
    if (lane(lanes.valid, l)) at[l] = static_cast<S>(lane(x, l));
  }
}
template <class T, class S>
GS_FN T load_rows(const S* array, I32 row, const Lanes& lanes, int size = 1, int entry = 0) {
  const int32_t first = lane(row, 0);
  if (all(row == I32(first))) {
    return load<T>(array, static_cast<int64_t>(first) * size + entry, lanes);
  }
  T out;
  for (int l = 0; l < GS_LANES; ++l) {
    const int64_t i = place(lane(row, l), index_of(lanes, l), lanes, size, entry);
    set_lane(out, l, static_cast<scalar_of<T> >(array[i]));
  }
  return out;
}
template <class S, class T>
GS_FN void store_rows(Mask where, S* array, I32 row, const Lanes& lanes, T x, int size = 1,
                      int entry = 0) {
  const Mask mask = where & lanes.valid;
  GS_UNROLLED for (int l = 0; l < GS_LANES; ++l) {
    if (lane(mask, l)) {
      array[place(lane(row, l), lanes.first + l, lanes, size, entry)] = static_cast<S>(lane(x, l));
    }
  }
}
template <int N>
GS_FN void load_state(const Scalar* array, const Lanes& lanes, Real* y) {
  for_each<N>([&](auto c) GS_LAMBDA {
    for (int l = 0; l < GS_LANES; ++l) set_lane(y[c], l, array[index_of(lanes, l) * N + c]);
  });
}
template <int N>
GS_FN void store_state(Scalar* array, const Lanes& lanes, const Real* y) {
  for_each<N>([&](auto c) GS_LAMBDA {
    for (int l = 0; l < GS_LANES; ++l) {
      if (lane(lanes.valid, l)) array[(lanes.first + l) * N + c] = lane(y[c], l);
    }
  });
}
GS_FN int32_t highest(I32 x) {
  int32_t out = lane(x, 0);
  for (int l = 1; l < GS_LANES; ++l) out = lane(x, l) > out ? lane(x, l) : out;
  return out;
}
#endif

// ---- Leaves: parameters and captured arrays ----------------------------------------------------

// An array as the kernel gets it: shared by all trajectories, or with one entry per trajectory in
// its last axis. Which of the two is decided at run time, so that it needs no other kernel.
struct LeafArgument {
  void* data;
  int64_t per_lane;
};

// One leaf seen by the lanes of a pack.
#if GS_LANES == 1
template <class T, class S>
struct LeafView {
  const S* data;  // the first entry of this lane
  int64_t stride;

  GS_FN LeafView(const LeafArgument& leaf, const Lanes& where)
      : data(static_cast<const S*>(leaf.data) + (leaf.per_lane ? where.first : 0)),
        stride(leaf.per_lane ? where.total : 1) {}

  GS_FN T operator[](int64_t entry) const { return static_cast<T>(data[entry * stride]); }
};
#else
template <class T, class S>
struct LeafView {
  const S* data;
  Lanes lanes;
  bool per_lane;

  GS_FN LeafView(const LeafArgument& leaf, const Lanes& where)
      : data(static_cast<const S*>(leaf.data)), lanes(where), per_lane(leaf.per_lane != 0) {}

  GS_FN T operator[](int64_t entry) const {
    return per_lane ? load<T>(data, entry, lanes) : T(static_cast<scalar_of<T> >(data[entry]));
  }
};
#endif

// A time: the only entry of a leaf.
GS_FN Real load_time(const LeafArgument& time, const Lanes& lanes) {
  return LeafView<Real, Scalar>(time, lanes)[0];
}

// A leaf of Size entries, all of which are read at fixed places. A CPU reads it once, so that what
// a field of a thousand weights compiles to has no branches; a GPU reads it where it is used.
#if GS_CUDA
template <class T, class S, int Size>
using LeafEntries = LeafView<T, S>;
#else
template <class T, class S, int Size>
struct LeafEntries {
  T entries[Size];

  GS_NOINLINE LeafEntries(const LeafArgument& leaf, const Lanes& where) {
    const LeafView<T, S> view(leaf, where);
    for (int i = 0; i < Size; ++i) entries[i] = view[i];
  }
  GS_FN T operator[](int entry) const { return entries[entry]; }
};
#endif

// A leaf entry whose index differs from lane to lane.
template <class T, class S, class I>
GS_FN T load(const LeafView<T, S>& leaf, I entry) {
#if GS_LANES == 1
  return leaf[static_cast<int64_t>(entry)];
#else
  T out;
  for (int l = 0; l < GS_LANES; ++l) {
    const int64_t e = static_cast<int64_t>(lane(entry, l));
    const int64_t i = leaf.per_lane ? e * leaf.lanes.total + index_of(leaf.lanes, l) : e;
    set_lane(out, l, static_cast<scalar_of<T> >(leaf.data[i]));
  }
  return out;
#endif
}

}  // namespace gs

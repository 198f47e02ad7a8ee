// Short device functions shared by the small kernels: conversions, packed loads
// and stores, activations, lane reductions, angles, random bits.
#ifndef RECURVE_KERNELS_COMMON_DEVICE_MATH_CUH_
#define RECURVE_KERNELS_COMMON_DEVICE_MATH_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/activation.h"

namespace recurve {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// kCount elements in one access of kCount · sizeof(T) bytes, 4 to 16, kept as
// words: 16-bit variables would cost an instruction each.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  __device__ __forceinline__ float Get(int i) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[i]);
    } else {  // bfloat16 is the upper half of a float32
      return __uint_as_float(i % 2 == 0 ? word[i / 2] << 16
                                        : word[i / 2] & 0xffff0000u);
    }
  }

  uint32_t word[sizeof(T) * kCount / 4];
};

template <typename T, int kCount>
__device__ __forceinline__ Pack<T, kCount> LoadPack(const T* x) {
  return *reinterpret_cast<const Pack<T, kCount>*>(x);
}

template <typename T, int kCount>
__device__ __forceinline__ void Unpack(const Pack<T, kCount>& pack,
                                       float (&out)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = pack.Get(i);
}

template <typename T, int kCount>
__device__ __forceinline__ void StorePack(const float (&x)[kCount], T* y) {
  Pack<T, kCount> pack;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.word[i] = __float_as_uint(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(x[i], x[i + 1]);
      memcpy(&pack.word[i / 2], &two, sizeof(two));
    }
  }
  *reinterpret_cast<Pack<T, kCount>*>(y) = pack;
}

// 1 / (1 + e^−x): exact limits; NaN stays NaN.
__device__ __forceinline__ float DeviceSigmoid(float x) {
  return __fdividef(1.0f, 1.0f + expf(-x));
}

// 2^x to about 2⁻²², relative, in one instruction; exact at 0, and 0 below the
// smallest normal number and at −∞.
__device__ __forceinline__ float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x to about 2⁻²² · max(1, |x|), relative, in two instructions; 0 below the
// smallest normal number.
__device__ __forceinline__ float FastExp(float x) {
  return FastExp2(x * 1.442695041f);
}

// 1 / x to about 2⁻²³, relative, in one instruction; 0 for x too large for it.
__device__ __forceinline__ float FastReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x / (1 + e^−x) to about 2⁻²² · max(1, |x|), relative.
__device__ __forceinline__ float FastSilu(float x) {
  return x * FastReciprocal(1.0f + FastExp(-x));
}

// Activate of activation.h. `activation` is the same for all threads. REQUIRES:
// activation is pointwise (not kSoftmax).
__device__ __forceinline__ float DeviceActivate(Activation activation,
                                                float x) {
  switch (activation) {
    case Activation::kSilu:
      return x * DeviceSigmoid(x);
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case Activation::kSigmoid:
      return DeviceSigmoid(x);
    case Activation::kElu:
      return x > 0.0f ? x : expm1f(x);
    case Activation::kOnePlusElu:
      return x > 0.0f ? 1.0f + x : expf(x);
    case Activation::kTwoPlusElu:
      return x > 0.0f ? 2.0f + x : 1.0f + expf(x);
    case Activation::kExp:
      return expf(x);
    case Activation::kLeakyRelu:
      return x < 0.0f ? 0.01f * x : x;
    case Activation::kReluSquared:
      return x < 0.0f ? 0.0f : x * x;
    case Activation::kGelu:
      return 0.5f * x * erfcf(x * -0.70710678118654752440f);
    case Activation::kNone:
    case Activation::kSoftmax:
      break;
  }
  return x;
}

// Sum and maximum over `kWidth` neighbouring lanes, a power of two, in all of
// them; the order depends on the width alone.
template <int kWidth = 32>
__device__ __forceinline__ float LaneSum(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}
template <int kWidth = 32>
__device__ __forceinline__ float LaneMax(float x) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

// step · position turns, in half turns from -1 to 1; see LrpePhaseSteps. The
// product wraps at whole turns, so cost and error do not grow with the
// position.
__device__ __forceinline__ float PhaseHalfTurns(uint64_t step,
                                                int64_t position) {
  const uint64_t phase = step * static_cast<uint64_t>(position);
  return static_cast<float>(static_cast<int32_t>(phase >> 32)) * 0x1p-31f;
}

// cos and sin of that angle.
__device__ __forceinline__ void PhaseCosSin(uint64_t step, int64_t position,
                                            float* cos, float* sin) {
  sincospif(PhaseHalfTurns(step, position), sin, cos);
}

// Philox4x32 of base/random.h, the same bits.
__device__ __forceinline__ uint4 DevicePhilox4x32(uint64_t key,
                                                  uint64_t counter_low,
                                                  uint64_t counter_high) {
  uint4 c = make_uint4(static_cast<uint32_t>(counter_low),
                       static_cast<uint32_t>(counter_low >> 32),
                       static_cast<uint32_t>(counter_high),
                       static_cast<uint32_t>(counter_high >> 32));
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c.x;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(
        static_cast<uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<uint32_t>(p0));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Loads issued where they are written. The compiler would move them below the
// first early return, and so turn one wait for memory into two.
__device__ __forceinline__ int32_t LoadNow(const int32_t* x) {
  int32_t value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(x));
  return value;
}
__device__ __forceinline__ int64_t LoadNow(const int64_t* x) {
  int64_t value;
  asm volatile("ld.global.s64 %0, [%1];" : "=l"(value) : "l"(x));
  return value;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_DEVICE_MATH_CUH_

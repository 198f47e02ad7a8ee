// Gates of the delta rule: how a layer's raw values become decay and step size.
// The same functions on the CPU and on the GPU.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_DELTA_GATE_H_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_DELTA_GATE_H_

#include <cmath>
#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// The logarithm g <= 0 of decay, from the raw value a.
enum class DeltaDecay {
  kLog,       // g = a, which the caller keeps <= 0
  kSoftplus,  // g = −e^a_log · softplus(a + bias)
  kSigmoid,   // g = bound · sigmoid(e^a_log · (a + bias))
};

struct DeltaGate {
  DeltaDecay decay;
  bool by_channel;     // one decay for each key feature (KDA), else one for
                       // each value head (GDN)
  const float* a_log;  // [Hv]; unused for kLog
  const float* bias;   // [Hv], or by channel [Hv, D]; null: 0; unused for kLog
  float bound;         // of kSigmoid, negative
  float beta_scale;  // β = beta_scale · sigmoid(b): 1, or 2 where eigenvalues
                     // of the state's transition may be negative
};

// ln(1 + e^x), without overflow.
RECURVE_HOST_DEVICE inline float Softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

// e^a_log; DeltaSpeed: of a value head.
RECURVE_HOST_DEVICE inline float DeltaSpeedOf(const DeltaGate& gate,
                                              float a_log) {
  return gate.decay == DeltaDecay::kLog ? 1.0f : expf(a_log);
}
RECURVE_HOST_DEVICE inline float DeltaSpeed(const DeltaGate& gate,
                                            int64_t head) {
  return gate.decay == DeltaDecay::kLog ? 1.0f
                                        : DeltaSpeedOf(gate, gate.a_log[head]);
}

// The bias of this index, 0 without one.
RECURVE_HOST_DEVICE inline float DeltaBias(const DeltaGate& gate,
                                           int64_t index) {
  return gate.decay == DeltaDecay::kLog || gate.bias == nullptr
             ? 0.0f
             : gate.bias[index];
}

// g from the raw value plus bias, with the head's speed.
RECURVE_HOST_DEVICE inline float DeltaLogDecayOf(const DeltaGate& gate,
                                                 float speed, float x) {
  return gate.decay == DeltaDecay::kLog ? x
         : gate.decay == DeltaDecay::kSoftplus
             ? -speed * Softplus(x)
             : gate.bound / (1.0f + expf(-speed * x));
}

// g from the raw value a, with the head's speed and the bias of this index.
RECURVE_HOST_DEVICE inline float DeltaLogDecay(const DeltaGate& gate,
                                               float speed, int64_t bias,
                                               float a) {
  return DeltaLogDecayOf(gate, speed, a + DeltaBias(gate, bias));
}

RECURVE_HOST_DEVICE inline float DeltaBeta(const DeltaGate& gate, float b) {
  return gate.beta_scale / (1.0f + expf(-b));
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_DELTA_GATE_H_

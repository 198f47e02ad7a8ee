#ifndef RECURVE_ENGINE_CUDA_CUDA_POSITIONS_H_
#define RECURVE_ENGINE_CUDA_CUDA_POSITIONS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/program/position.h"
#include "engine/program/program.h"

namespace recurve {

// Position encodings of a model on the GPU: tables of cosines and sines, which
// a step fills for its rows before its first layer.
//
// Thread safety: none; the step thread.
class CudaPositions {
 public:
  struct Encoding {
    PositionConfig config;
    int64_t angles = 0;      // per row; 0: no encoding, no tables
    CudaMemory phase_steps;  // [angles] uint64, for exact angles; or
    CudaMemory theta;        // [angles] float32 angles
    CudaMemory cos, sin;     // [rows, angles] float32
  };

  // Device memory of an encoding's tables of `rows` rows.
  static int64_t DeviceBytes(const PositionConfig& config, int64_t rows) {
    return 2 * rows * static_cast<int64_t>(config.theta.size() * sizeof(float));
  }
  // Adds an encoding with tables of `rows` rows. Equal encodings have one id.
  // ResourceExhausted if memory does not suffice.
  absl::StatusOr<PositionId> Load(const PositionConfig& config, int64_t rows);

  const Encoding& operator[](PositionId id) const {
    return encodings_[id.value];
  }

  // Puts on `stream`: rows [first_row, first_row + count) of all tables, for
  // `positions` [count] on the device.
  absl::Status Compute(const int64_t* positions, int64_t first_row,
                       int64_t count, cudaStream_t stream) const;

 private:
  std::vector<Encoding> encodings_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_POSITIONS_H_

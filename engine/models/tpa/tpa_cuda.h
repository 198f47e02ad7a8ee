#ifndef RECURVE_ENGINE_MODELS_TPA_TPA_CUDA_H_
#define RECURVE_ENGINE_MODELS_TPA_TPA_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/models/tpa/tpa_launches.h"
#include "engine/models/tpa/tpa_operation.h"
#include "kernels/common/weight_type.h"
#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/prefill/tpa_prefill_cuda.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

// TpaOperation on a GPU: the launch plans for the shapes of a model's layers,
// and the launches of each layer in a step.
//
// - A decode step: one launch of the decode kernel, one row per sequence, which
//   appends the rows' tokens where it can.
// - Other steps, tokens of TokenKind::kStep: the decode kernel, with rows of
//   one token or up to kTpaPieceTokens, whose queries are gathered ("pieces").
// - Prompts: the prefill kernel if there is one for the device, else as above.
//
// So a token is always attended by the same kernel, which gives it the same
// bits in any batch and for any split of its prompt.
class CudaTpa : public CudaOperations {
 public:
  explicit CudaTpa(const CudaOperationLimits& limits);

  void Add(const SequenceOperation& operation) override;
  int64_t table_rows() const override { return piece_tokens_; }
  absl::StatusOr<int64_t> DeviceBytes() override;
  // Page tables included.
  int64_t StepBytes() const override;
  absl::Status Allocate() override;

  // A TpaContexts.
  int64_t Variant(absl::Span<const int64_t> positions,
                  int64_t rows) const override;
  absl::Status BeginDecode(const CudaStep& step, const DecodeRows& rows,
                           int64_t variant, CudaStepBuffer* buffer) override;
  absl::Status BeginMixed(const CudaStep& step, const StepBatch& batch,
                          CudaStepBuffer* buffer) override;
  Positions table_positions() const override {
    return {piece_positions_, piece_positions_count_};
  }
  // Schedules the step's prompts, for all layers.
  absl::Status Prepare(cudaStream_t stream) override;
  absl::Status Launch(const SequenceOperation& operation, const CudaView& view,
                      const Output& output) override;
  WorkingBlocks Working(const SequenceOperation& operation) const override;

 private:
  // One launch of an operation.
  struct Layer {
    size_t shape;
    TpaCudaCache cache;
    Activations a_q, b_q;
    TpaCudaFactors factors;  // for the step's rows; cos and sin are [table_rows
                             // + piece_tokens_, angles]
    int64_t angles;
    Activations out;
    WeightType out_type = WeightType::kFloat32;  // or 16-bit, with the row
                                                 // stride of floats; kBFloat16
                                                 // in steps with prompts
    absl::Span<const char> next;  // device memory to be read after this
  };
  // Plans for one shape.
  struct Shape {
    struct Prefill {
      TpaPrefillPlan plan;
      void* schedule;
    };
    TpaShape shape;
    // By number of rows, each with one new token, or kTpaPieceTokens in
    // `pieces`.
    std::map<std::pair<int64_t, TpaContexts>, TpaDecodePlan> decode;
    std::map<std::pair<int64_t, TpaContexts>, TpaDecodePlan> pieces;
    int64_t schedule_bytes = 0;   // for the decode kernel in a step, at most
    int64_t prefill_scratch = 0;  // bytes that plans may take
    // For the step in progress: schedules of its pieces, or the one of a decode
    // step; and of its prompts, in prefill_schedules_.
    std::vector<void*> schedules;
    std::vector<Prefill> prefills;
  };
  // One launch of the decode kernel over rows of up to kTpaPieceTokens tokens.
  struct Piece {
    int64_t rows;
    int64_t tokens;     // per row: 1 or kTpaPieceTokens
    int64_t table_row;  // first row in position tables
    // First row of the step, if the rows are consecutive and each is the only
    // one of its sequence in the step: no gathering is needed. Else -1.
    int64_t first;
    const int32_t* index;  // [rows · tokens] rows of the step, -1: padding
    const int32_t* pages;  // [rows, page_stride_]
  };
  // One launch of the prefill kernel. Its rows are consecutive runs of the
  // step; those of kStep have length 0 and are skipped.
  struct Prefill {
    int64_t rows;
    int64_t tokens;              // without skipped rows
    int64_t context;             // without skipped rows
    const int32_t* query_start;  // [rows + 1]
    const int32_t* lengths;      // [rows]
    const int32_t* pages;        // [rows, page_stride_]
  };

  // Sizes of the buffers that all shapes share, in bytes.
  struct Sizes {
    int64_t prefill_schedules = 0;
    int64_t scratch = 0;
    int64_t prefill_scratch = 0;
    int64_t queries = 0;
    int64_t formed = 0;
    int64_t attended = 0;
  };
  // Also computes the shapes' own sizes.
  absl::StatusOr<Sizes> Measure();
  absl::StatusOr<const TpaDecodePlan*> Plan(Shape& shape, int64_t rows,
                                            int64_t tokens,
                                            TpaContexts contexts) const;
  TpaPrefillPlan PlanPrefill(const Shape& shape, int64_t rows, int64_t tokens,
                             int64_t context) const;
  // Layers of equal shape share a number.
  size_t AddShape(const TpaShape& shape);
  // Whether the decode kernel appends the step's tokens to layers of this
  // shape, with this activation of A_k and A_v.
  bool Appends(size_t shape, Activation activation) const;
  absl::Status Append(const Layer& layer, const CudaView& view);
  absl::Status Attend(const Layer& layer, cudaStream_t stream);
  absl::Status AddPieces(const StepBatch& batch, CudaStepBuffer* step);
  void AddPrefills(const StepBatch& batch, CudaStepBuffer* step);
  // Adds the schedule of a launch of the decode kernel, for each shape.
  absl::Status AddSchedules(const TpaScheduleParams& of, int64_t tokens,
                            CudaStepBuffer* step);
  // Plans prefills, and assigns memory to their schedules.
  absl::Status PlanPrefills();
  // Copies a row's pages from its sequence's to `to`.
  void CopyPages(const StepBatch& batch, int32_t sequence, int32_t* to) const;
  // One launch of the decode kernel, with the queries in formed_.
  struct Decode {
    void* schedule;
    int64_t rows;
    int64_t tokens;      // per row
    int64_t new_tokens;  // per sequence in the step, at most
    const int32_t* pages;
    WeightType out_type;
    void* out;
    int64_t out_stride;
    absl::Span<const char> next = {};
  };
  absl::Status LaunchDecode(const Layer& layer, const Decode& decode,
                            cudaStream_t stream);
  // Whether the decode kernel can read and write a piece's rows in place.
  bool InPlace(WeightType out_type, const Piece& piece) const {
    return piece.first >= 0 && (out_type == WeightType::kFloat32 ||
                                out_type == TpaWeightType(element_));
  }
  absl::Status FormQueries(const Layer& layer, Activations a_q, Activations b_q,
                           int64_t rows, int64_t table_row,
                           cudaStream_t stream);
  absl::Status LaunchPiece(const Layer& layer, size_t index,
                           cudaStream_t stream);
  absl::Status LaunchPrefill(const Layer& layer, size_t index,
                             cudaStream_t stream);
  // Elements between rows of a layer's outputs.
  static int64_t OutStride(const Layer& layer) {
    return layer.out.stride * (layer.out_type == WeightType::kFloat32 ? 1 : 2);
  }

  const CudaOperationLimits options_;
  const TpaElement element_;
  const TpaDevice device_;
  const TpaStepLimits limits_;
  int64_t piece_tokens_;  // per step, at most, with padding
  std::vector<Shape> shapes_;
  std::map<const SequenceOperation*, size_t> shape_of_;
  TpaContextLimits context_limits_;  // for a decode step
  CudaMemory prefill_schedules_;     // for all launches of a step
  CudaMemory scratch_;               // for the decode kernel
  CudaMemory prefill_scratch_;
  CudaMemory queries_;   // gathered, for a piece
  CudaMemory formed_;    // queries in the decode kernel's layout
  CudaMemory attended_;  // for a piece

  // State of the step in progress.
  bool decode_ = false;
  TpaContexts contexts_ = TpaContexts::kAny;
  int64_t rows_ = 0;
  const int32_t* page_table_ = nullptr;
  int64_t page_stride_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Prefill> prefills_;
  int64_t piece_positions_count_ = 0;
  const int64_t* piece_positions_ = nullptr;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_TPA_TPA_CUDA_H_

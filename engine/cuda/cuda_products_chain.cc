// CudaProducts: a layer's products in one launch, and their deferral.
#include "base/status_macros.h"
#include "engine/cuda/cuda_activations.h"
#include "engine/cuda/cuda_products.h"

namespace recurve {

absl::Status CudaProducts::Flush() {
  if (!chain_) return absl::OkStatus();
  const Chain chain = *chain_;
  chain_.reset();
  RECURVE_RETURN_IF_ERROR(chain.mixer
                              ? LaunchChain(chain, MatrixId{}, Activations{})
                              : ProjectNow(chain.x, chain.out, chain.residual,
                                           /*add=*/true));
  if (!chain.next_norm) return absl::OkStatus();
  return NormNow(chain.residual, chain.next_norm->norm, chain.next_norm->out);
}

ProductChainParams CudaProducts::ChainParams(const Chain& chain,
                                             MatrixId next) const {
  const Matrix& out = matrices_[chain.out.value];
  const Backend::ChannelMixerArgs& args = chain.mixer->args;
  const Matrix& up = matrices_[args.w1_w2.value];
  const Matrix& down = matrices_[args.w3.value];
  ProductChainParams p = {};
  p.type = out.type;
  p.rows = rows_;
  p.width = out.outputs;
  p.x = chain.x.data;
  p.x_stride = 2 * chain.x.stride;
  p.x_cols = chain.x.cols;
  p.out = out.memory.data();
  p.out_inputs = out.padded;
  p.residual = Floats(chain.residual);
  p.residual_stride = chain.residual.stride;
  p.up_norm = chain.mixer->norm.weight;
  p.up_eps = chain.mixer->norm.eps;
  p.up = up.memory.data();
  p.up_inputs = up.padded;
  p.features = up.outputs / 2;
  p.activation = args.activation;
  p.down = down.memory.data();
  p.down_cols = args.hidden.cols;
  p.down_inputs = down.padded;
  p.working = working_;
  p.exchange = exchange_.data();
  if (next.value < 0) return p;
  const Matrix& last = matrices_[next.value];
  p.next_norm = chain.next_norm->norm.weight;
  p.next_eps = chain.next_norm->norm.eps;
  p.next = last.memory.data();
  p.next_outputs = last.outputs;
  p.next_inputs = last.padded;
  return p;
}

// Decided by types and sizes alone: a row has the same bits either way.
bool CudaProducts::Chains(const Chain& chain, MatrixId next) const {
  return chain.residual.cols == matrices_[chain.out.value].outputs &&
         ProductChainTakes(ChainParams(chain, next));
}

absl::Status CudaProducts::LaunchChain(const Chain& chain, MatrixId next,
                                       const Activations& y) {
  Note(chain.out);
  Note(chain.mixer->args.w1_w2);
  ProductChainParams p = ChainParams(chain, next);
  if (next.value >= 0) {
    Note(next);
    p.y = Floats(y);
    p.y_stride = y.stride;
  }
  working_ = {};
  return CudaStatus(LaunchProductChain(p, stream_), "products of a layer");
}

}  // namespace recurve

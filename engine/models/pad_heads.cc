#include "engine/models/pad_heads.h"

#include <cmath>
#include <utility>

#include "base/check.h"

namespace recurve {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Calls f(index) for each padded feature of all heads: which of the stored
// features it is, or -1.
template <typename F>
void ForEachFeature(const std::vector<PaddedHeads>& heads, F f) {
  int64_t first = 0;
  for (const PaddedHeads& of : heads) {
    for (int64_t h = 0; h < of.count; ++h, first += of.dim) {
      for (const int32_t feature : of.features) {
        f(feature < 0 ? int64_t{-1} : first + feature);
      }
    }
  }
}

std::vector<int32_t> Order(const std::vector<int32_t>& stored, int64_t size,
                           const std::vector<PaddedHeads>& heads) {
  int64_t features = 0;
  for (const PaddedHeads& of : heads) features += of.count * of.dim;
  RECURVE_CHECK(features == size);
  std::vector<int32_t> order;
  ForEachFeature(heads, [&](int64_t index) {
    order.push_back(index < 0        ? -1
                    : stored.empty() ? static_cast<int32_t>(index)
                                     : stored[index]);
  });
  return order;
}

}  // namespace

PaddedFeatures PadAtEnd(int64_t dim, int64_t multiple) {
  PaddedFeatures features(RoundUp(dim, multiple), -1);
  for (int64_t i = 0; i < dim; ++i) features[i] = static_cast<int32_t>(i);
  return features;
}

PaddedFeatures PadHalves(int64_t dim, int64_t multiple) {
  RECURVE_CHECK(dim % 2 == 0);
  PaddedFeatures features(RoundUp(dim, multiple), -1);
  const int64_t half = static_cast<int64_t>(features.size()) / 2;
  for (int64_t i = 0; i < dim / 2; ++i) {
    features[i] = static_cast<int32_t>(i);
    features[half + i] = static_cast<int32_t>(dim / 2 + i);
  }
  return features;
}

MatrixPart PadRows(MatrixPart part, const std::vector<PaddedHeads>& heads) {
  part.row_order = Order(part.row_order, part.rows(), heads);
  return part;
}

MatrixPart PadCols(MatrixPart part, const std::vector<PaddedHeads>& heads) {
  part.col_order = Order(part.col_order, part.cols(), heads);
  return part;
}

std::vector<float> PadValues(const std::vector<float>& values, int64_t width,
                             const std::vector<PaddedHeads>& heads) {
  std::vector<float> padded;
  ForEachFeature(heads, [&](int64_t index) {
    for (int64_t i = 0; i < width; ++i) {
      padded.push_back(index < 0 ? 0.0f : values[index * width + i]);
    }
  });
  return padded;
}

PaddedNorm PadNorm(int64_t dim, int64_t padded) {
  const double part = static_cast<double>(dim) / static_cast<double>(padded);
  return {part, static_cast<float>(std::sqrt(part))};
}

}  // namespace recurve

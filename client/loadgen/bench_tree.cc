#include "client/loadgen/bench_tree.h"

#include <algorithm>

#include "base/check.h"

namespace recurve {
namespace {

constexpr uint64_t kCountLimit = uint64_t{1} << 63;

uint64_t BoundedProduct(uint64_t a, uint64_t b) {
  return a > kCountLimit / b ? kCountLimit : a * b;
}

}  // namespace

uint64_t RequestTree::CountLeaves(uint32_t branches, uint32_t levels) {
  if (branches == 1) return 1;
  uint64_t leaves = 1;
  for (uint32_t i = 0; i < levels && leaves < kCountLimit; ++i) {
    leaves = BoundedProduct(leaves, branches);
  }
  return leaves;
}

uint64_t RequestTree::CountRequests(uint32_t turns, uint32_t branches,
                                    uint32_t levels) {
  uint64_t count = 0;
  uint64_t level_size = 1;
  for (uint64_t level = 0; level <= levels; ++level) {
    count = std::min(kCountLimit, count + level_size);
    if (count == kCountLimit) break;
    level_size = BoundedProduct(level_size, branches);
  }
  return BoundedProduct(count, turns);
}

RequestTree::RequestTree(uint32_t turns, uint32_t branches, uint32_t levels)
    : turns_(turns),
      branches_(branches),
      size_(static_cast<uint32_t>(CountRequests(turns, branches, levels))) {
  RECURVE_CHECK(turns >= 1 && branches >= 1);
  RECURVE_CHECK(CountRequests(turns, branches, levels) <= UINT32_MAX);
}

std::optional<uint32_t> RequestTree::Parent(uint32_t request) const {
  if (request == 0) return std::nullopt;
  if (!BeginsBranch(request)) return request - 1;
  const uint32_t parent_branch = (request / turns_ - 1) / branches_;
  return parent_branch * turns_ + turns_ - 1;
}

std::vector<uint32_t> RequestTree::Children(uint32_t request) const {
  if ((request + 1) % turns_ != 0) return {request + 1};
  std::vector<uint32_t> children;
  const uint64_t first = uint64_t{request / turns_} * branches_ + 1;
  for (uint64_t branch = first; branch < first + branches_; ++branch) {
    if (branch * turns_ >= size_) break;
    children.push_back(static_cast<uint32_t>(branch * turns_));
  }
  return children;
}

}  // namespace recurve

#ifndef RECURVE_CLIENT_LOADGEN_BENCH_TREE_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_TREE_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace recurve {

// The requests of one conversation and which follows which. A conversation is a
// tree of branches. Each branch is a line of `turns` requests, and at its end
// the context parts into `branches` new ones, `levels` times. Without levels it
// is one line.
//
// Requests are numbered from 0: request r is turn r % turns of branch
// r / turns. Branch 0 is the root; the branches that follow branch b are
// b * branches + 1 to b * branches + branches.
//
// Thread safety: const methods may be called from any thread.
class RequestTree {
 public:
  // REQUIRES: turns, branches >= 1, and CountRequests of the three < 2^32.
  RequestTree(uint32_t turns, uint32_t branches, uint32_t levels);

  // Requests of such a tree; 2^63 if there are more.
  static uint64_t CountRequests(uint32_t turns, uint32_t branches,
                                uint32_t levels);
  // Branches at the last level, which can be open at a time; 2^63 if there are
  // more.
  static uint64_t CountLeaves(uint32_t branches, uint32_t levels);

  uint32_t size() const { return size_; }
  // The request whose prompt and output `request` goes on from; none for
  // request 0.
  std::optional<uint32_t> Parent(uint32_t request) const;
  // The requests that go on from `request`, ascending.
  std::vector<uint32_t> Children(uint32_t request) const;
  // Whether others go on from the same context.
  bool BeginsBranch(uint32_t request) const {
    return request > 0 && request % turns_ == 0;
  }

 private:
  uint32_t turns_;
  uint32_t branches_;
  uint32_t size_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_TREE_H_

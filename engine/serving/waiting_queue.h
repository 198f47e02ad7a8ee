#ifndef RECURVE_ENGINE_SERVING_WAITING_QUEUE_H_
#define RECURVE_ENGINE_SERVING_WAITING_QUEUE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/serving/sequence.h"

namespace recurve {

// Sequences that have work and no memory, by flow and rank, so that a step
// considers no more of them than it may admit. Short and long prompts are
// separate, as are the counts of paced and other prompts, so that neither hides
// those that may pass it (rule 3 of scheduler.h).
//
// Not thread-safe.
class WaitingQueue {
 public:
  // Prompts of at most `short_tokens` tokens are short in some step.
  explicit WaitingQueue(int64_t short_tokens) : short_tokens_(short_tokens) {}

  // Insert has no effect on a member, Erase none on others.
  void Insert(Sequence* sequence);
  void Erase(Sequence* sequence);

  bool empty() const { return places_.empty(); }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  // The first in rank, for short and long prompts each: up to `most` that are
  // not `paced`, and, of those before the last of these, up to `most` that are.
  // `ahead` has the number of sequences with memory and work, by flow.
  std::vector<Sequence*> First(
      int64_t most, const std::map<uint32_t, int64_t>& ahead,
      const std::function<bool(const Sequence&)>& paced) const;

 private:
  using Key = std::pair<int64_t, uint64_t>;  // minus priority, arrival
  using Line = std::map<Key, Sequence*>;
  struct Place {
    int kind;  // 0: short, 1: long
    uint32_t flow;
    Key key;
  };

  void AddFirst(const std::map<uint32_t, Line>& lines, int64_t most,
                const std::map<uint32_t, int64_t>& ahead,
                const std::function<bool(const Sequence&)>& paced,
                std::vector<Sequence*>* first) const;

  const int64_t short_tokens_;
  std::array<std::map<uint32_t, Line>, 2> lines_;  // by kind and flow
  std::unordered_map<Sequence*, Place> places_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_WAITING_QUEUE_H_

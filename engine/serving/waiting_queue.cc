#include "engine/serving/waiting_queue.h"

#include <queue>
#include <tuple>

namespace recurve {
namespace {

// Limit on the sequences examined for a step, as a multiple of `most`.
constexpr int64_t kMaxScan = 4;

}  // namespace

void WaitingQueue::Insert(Sequence* sequence) {
  const Place place = {
      sequence->prompt_work() > short_tokens_,
      sequence->options().flow.id,
      {-int64_t{sequence->options().priority}, sequence->arrival()}};
  if (!places_.emplace(sequence, place).second) return;
  lines_[place.kind][place.flow].emplace(place.key, sequence);
}

void WaitingQueue::Erase(Sequence* sequence) {
  const auto found = places_.find(sequence);
  if (found == places_.end()) return;
  const Place place = found->second;
  places_.erase(found);
  std::map<uint32_t, Line>& lines = lines_[place.kind];
  const auto line = lines.find(place.flow);
  line->second.erase(place.key);
  if (line->second.empty()) lines.erase(line);
}

void WaitingQueue::AddFirst(const std::map<uint32_t, Line>& lines, int64_t most,
                            const std::map<uint32_t, int64_t>& ahead,
                            const std::function<bool(const Sequence&)>& paced,
                            std::vector<Sequence*>* first) const {
  // The first remaining sequence of each flow, with its turn.
  struct Head {
    Line::const_iterator next;
    Line::const_iterator end;
    int64_t before;

    auto rank() const {
      const Sequence& s = *next->second;
      return std::tuple(next->first.first,
                        static_cast<double>(before) / s.options().flow.weight,
                        s.arrival());
    }
    bool operator<(const Head& other) const { return rank() > other.rank(); }
  };
  std::priority_queue<Head> heads;
  for (const auto& [flow, line] : lines) {
    const auto found = ahead.find(flow);
    heads.push(
        {line.begin(), line.end(), found == ahead.end() ? 0 : found->second});
  }
  int64_t seen[2] = {};  // not paced, paced
  while (!heads.empty() && seen[0] < most &&
         seen[0] + seen[1] < kMaxScan * most) {
    Head head = heads.top();
    heads.pop();
    Sequence* const sequence = head.next->second;
    if (seen[paced(*sequence)]++ < most) first->push_back(sequence);
    ++head.before;
    if (++head.next != head.end) heads.push(head);
  }
}

std::vector<Sequence*> WaitingQueue::First(
    int64_t most, const std::map<uint32_t, int64_t>& ahead,
    const std::function<bool(const Sequence&)>& paced) const {
  std::vector<Sequence*> first;
  for (const std::map<uint32_t, Line>& lines : lines_) {
    AddFirst(lines, most, ahead, paced, &first);
  }
  return first;
}

}  // namespace recurve

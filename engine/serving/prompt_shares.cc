#include "engine/serving/prompt_shares.h"

#include <algorithm>
#include <limits>

namespace recurve {
namespace {

// Tokens of `s` that must be computed in one step.
int64_t WholeRest(const SequenceView& s) {
  return std::max<int64_t>(0, s.whole_tokens - s.num_computed);
}

// Tokens available to the long prompts of one flow.
struct FlowPool {
  uint32_t flow;
  double weight;
  int64_t tokens = 0;
};

}  // namespace

PromptShares::PromptShares(const SchedulerLimits& limits, int64_t tokens,
                           absl::Span<const SequenceView> prompts)
    : limits_(limits), tokens_(tokens) {
  std::vector<SequenceView> possible;
  for (const SequenceView& s : prompts) {
    if (WholeRest(s) <= tokens) possible.push_back(s);
  }
  const auto first_long =
      std::find_if(possible.begin(), possible.end(),
                   [&](const SequenceView& s) { return !Fits(s); });
  if (first_long != possible.end() && first_long->passed_over) {
    insists_ = first_long->id;
  }
  if (limits.max_prompt_tokens < tokens) {
    std::vector<SequenceView> paced;
    for (const SequenceView& s : possible) {
      if (s.paced) paced.push_back(s);
    }
    paced_ = Make(limits.max_prompt_tokens, /*may_exceed=*/true, paced);
    bounded_ = true;
  }
  all_ = Make(tokens, /*may_exceed=*/false, possible);
}

int64_t PromptShares::NeedOf(const SequenceView& s) const {
  return std::min({s.rest(), limits_.max_chunk_tokens, s.max_step_tokens});
}

int64_t PromptShares::MostOf(const SequenceView& s) const {
  return bounded_ && s.paced ? std::min(NeedOf(s), LimitOf(s)) : NeedOf(s);
}

int64_t PromptShares::LimitOf(const SequenceView& s) const {
  const int64_t share = paced_.Of(s);
  // The first prompt of a step may exceed max_prompt_tokens.
  return share > 0 ? std::max(share, WholeRest(s)) : 0;
}

bool PromptShares::Fits(const SequenceView& s) const {
  const int64_t half =
      std::min({tokens_ / 2, limits_.max_chunk_tokens, s.max_step_tokens});
  return s.whole_tokens <= half &&
         std::max(s.rest(), s.prompt_tokens) <= 2 * half;
}

bool PromptShares::HasHalf(const SequenceView& s) const {
  return all_.half > 0 && s.priority == all_.priority && Fits(s);
}

bool PromptShares::PrecedesHalf(const SequenceView& s) const {
  return all_.half > 0 && s.priority > all_.priority;
}

PromptShares::Shares PromptShares::Make(
    int64_t tokens, bool may_exceed,
    absl::Span<const SequenceView> prompts) const {
  const auto first_long =
      std::find_if(prompts.begin(), prompts.end(),
                   [&](const SequenceView& s) { return !Fits(s); });
  const SequenceView* highest =
      first_long == prompts.end() ? nullptr : &*first_long;
  std::vector<FlowPool> flows;  // the flow of `highest` first
  double weights = 0;
  int64_t above = 0;        // needs of short prompts of higher priority
  int64_t beside = 0;       // and of the same priority
  bool ranks_first = true;  // no short prompt ranks above the first long one
  for (const SequenceView& s : prompts) {
    if (highest != nullptr && s.priority < highest->priority) break;
    if (Fits(s)) {
      const bool is_above =
          highest == nullptr || s.priority > highest->priority;
      (is_above ? above : beside) += NeedOf(s);
      ranks_first &= is_above || &s > highest;
    } else if (std::none_of(flows.begin(), flows.end(), [&](const FlowPool& f) {
                 return f.flow == s.flow;
               })) {
      flows.push_back({s.flow, s.weight});
      weights += s.weight;
    }
  }
  Shares shares;
  above = std::min(above, tokens);
  int64_t rest = tokens - above;
  // If the rest is too small to divide, only rank decides.
  const bool divided = rest / 2 >= limits_.chunk_multiple;
  if (highest != nullptr && divided) {
    // A whole prompt may leave others less than half: those behind it, or all
    // of them if they preceded it in the previous step.
    int64_t least = limits_.chunk_multiple;
    if (ranks_first || highest->id == insists_) {
      least = std::max(least, WholeRest(*highest));
    }
    shares.half = std::min(rest / 2, rest - std::min(least, rest));
    shares.priority = highest->priority;
    beside = std::min(beside, shares.half);
    rest -= beside;
    const auto pool = static_cast<double>(rest);
    for (size_t i = 1; i < flows.size(); ++i) {
      const auto part = static_cast<int64_t>(pool * flows[i].weight / weights);
      flows[i].tokens = std::max<int64_t>(0, std::min(part, rest - least));
      rest -= flows[i].tokens;
    }
    flows[0].tokens = rest;
  }
  for (const SequenceView& s : prompts) {
    int64_t* pool = nullptr;
    if (highest != nullptr && s.priority < highest->priority) break;
    if (highest == nullptr || s.priority > highest->priority) {
      pool = &above;
    } else if (!divided) {
      pool = &rest;
    } else if (Fits(s)) {
      pool = &beside;
    } else {
      for (FlowPool& f : flows) {
        if (f.flow == s.flow) pool = &f.tokens;
      }
    }
    if (pool == nullptr) continue;
    int64_t share = CutChunk(limits_, s, std::min(MostOf(s), *pool));
    // The first prompt of a step may exceed max_prompt_tokens.
    if (share == 0 && may_exceed && shares.of.empty() && WholeRest(s) > *pool) {
      share = *pool;
    }
    if (share <= 0) continue;
    *pool -= share;
    shares.of.emplace_back(s.id, share);
  }
  return shares;
}

int64_t PromptShares::Shares::Of(const SequenceView& s) const {
  for (const auto& [id, tokens] : of) {
    if (id == s.id) return tokens;
  }
  return 0;
}

int64_t CutChunk(const SchedulerLimits& limits, const SequenceView& s,
                 int64_t tokens) {
  int64_t end = s.num_computed + tokens;
  if (s.num_computed < s.cut) end = std::min(end, s.cut);
  if (end == s.num_tokens) return tokens;
  int64_t cut = end - end % limits.chunk_multiple;
  if (s.num_computed < s.whole_tokens) {
    if (end < s.whole_tokens) return 0;
    cut = std::max(cut, s.whole_tokens);
  }
  return std::max<int64_t>(0, cut - s.num_computed);
}

}  // namespace recurve

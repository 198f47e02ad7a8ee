#include "engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace recurve {
namespace {

bool RanksAbove(const SequenceView& a, const SequenceView& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  return a.arrival < b.arrival;
}

std::vector<SequenceView> Ranked(absl::Span<const SequenceView> sequences) {
  std::vector<SequenceView> ranked(sequences.begin(), sequences.end());
  std::sort(ranked.begin(), ranked.end(), RanksAbove);
  return ranked;
}

class Planner {
 public:
  // `reserve_for`: one that waits, whose first chunk is kept from resident
  // prompts of lower priority.
  Planner(const SchedulerLimits& limits, int64_t free_pages, int64_t free_slots,
          absl::Span<const SequenceView> resident,
          std::optional<SequenceView> reserve_for = std::nullopt)
      : limits_(limits),
        free_pages_(free_pages),
        free_slots_(free_slots),
        budget_(limits.max_batched_tokens),
        prompt_budget_(limits.max_prompt_tokens),
        resident_(Ranked(resident)),
        reserve_for_(reserve_for) {
    if (reserve_for) {
      reserved_ = CutChunk(
          *reserve_for, std::min(Rest(*reserve_for), ChunkLimit(*reserve_for)));
    }
    // Victims are taken from the back: the lowest in rank, idle ones last of
    // all.
    for (const SequenceView& s : resident_) {
      if (!s.ending) victims_.push_back(s);
    }
    std::stable_sort(victims_.begin(), victims_.end(),
                     [](const SequenceView& a, const SequenceView& b) {
                       return a.has_work > b.has_work;
                     });
  }

  StepPlan Plan(absl::Span<const SequenceView> waiting) {
    const std::vector<SequenceView> ranked = Ranked(waiting);
    SetAside(ranked);
    ScheduleResident();
    for (const SequenceView& sequence : ranked) {
      if (WouldOvertake(sequence)) break;
      if (Admit(sequence)) continue;
      if (!first_left_) first_left_ = sequence;
      if (!HeldByPace(sequence)) break;
    }
    if (plan_.entries.empty()) AwaitCopy();
    return std::move(plan_);
  }

  // After Plan: the first of those that still wait, if residents of lower
  // priority have some of what max_prompt_tokens allows.
  std::optional<SequenceView> PassedOver() const {
    const bool bounded =
        limits_.max_prompt_tokens < std::numeric_limits<int64_t>::max();
    if (!bounded || !first_left_ || first_left_->from_host ||
        lowest_paced_ >= first_left_->priority) {
      return std::nullopt;
    }
    return first_left_;
  }

 private:
  int64_t PagesFor(int64_t tokens) const {
    if (limits_.page_tokens == 0) return 0;
    return (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  }

  static bool Decodes(const SequenceView& s) {
    return s.num_tokens - s.num_computed == 1;
  }

  static bool IsPaced(const SequenceView& s) { return s.paced && !Decodes(s); }

  // Whether it is the bound for paced prompts alone that leaves `s` nothing.
  bool HeldByPace(const SequenceView& s) const {
    const int64_t most =
        std::min({s.num_tokens - s.num_computed, budget_,
                  limits_.max_chunk_tokens, s.max_step_tokens});
    return IsPaced(s) && CutChunk(s, most) > 0 &&
           CutChunk(s, std::min(most, ChunkLimit(s))) <= 0;
  }

  int64_t ChunkLimit(const SequenceView& s) const {
    const int64_t limit = std::min(limits_.max_chunk_tokens, s.max_step_tokens);
    if (!IsPaced(s)) return limit;
    int64_t prompts = std::max<int64_t>(0, prompt_budget_ - ReservedFrom(s));
    // What is whole cannot be cut. The first of a step may be beyond the bound.
    if (prompts > 0 && prompts == limits_.max_prompt_tokens) {
      prompts = std::max(prompts, s.whole_tokens - s.num_computed);
    }
    return std::min(limit, prompts);
  }

  int64_t ReservedFrom(const SequenceView& s) const {
    const bool yields =
        reserve_for_ && !Decodes(s) && s.priority < reserve_for_->priority;
    return yields ? reserved_ : 0;
  }

  // `tokens` of `s` are computed in this step; or, negative, not after all.
  void Spend(const SequenceView& s, int64_t tokens) {
    budget_ -= tokens;
    if (IsPaced(s)) prompt_budget_ -= tokens;
  }

  // `tokens` more of `s`, or fewer, so that they end where a step may end.
  int64_t CutChunk(const SequenceView& s, int64_t tokens) const {
    const int64_t end = s.num_computed + tokens;
    if (end == s.num_tokens) return tokens;
    int64_t cut = end - end % limits_.chunk_multiple;
    if (s.num_computed < s.whole_tokens) {
      if (end < s.whole_tokens) return 0;
      cut = std::max(cut, s.whole_tokens);
    }
    return std::max<int64_t>(0, cut - s.num_computed);
  }

  bool IsPreempted(uint64_t id) const {
    return std::find(plan_.preempt.begin(), plan_.preempt.end(), id) !=
           plan_.preempt.end();
  }

  // Whether `sequence` ranks below one that lost its memory in this step and
  // waits for it from the next on.
  bool WouldOvertake(const SequenceView& sequence) const {
    return highest_preempted_ && RanksAbove(*highest_preempted_, sequence);
  }

  void PreemptLast() {
    const SequenceView& victim = victims_.back();
    if (victim.has_work &&
        (!highest_preempted_ || RanksAbove(victim, *highest_preempted_))) {
      highest_preempted_ = victim;
    }
    free_pages_ += victim.pages;
    ++free_slots_;
    plan_.preempt.push_back(victims_.back().id);
    victims_.pop_back();
  }

  // Whether `victim` may be preempted so that resident `sequence` gets a page.
  static bool YieldsTo(const SequenceView& victim,
                       const SequenceView& sequence) {
    return victim.id != sequence.id &&
           (!victim.has_work || RanksAbove(sequence, victim));
  }

  // Of its tokens, how many are not computed.
  static int64_t Rest(const SequenceView& s) {
    return s.num_tokens - s.num_computed;
  }
  static bool DecodesNow(const SequenceView& s) {
    return s.has_work && !s.from_host && Decodes(s);
  }

  // Finds what the highest in rank of the prompts leaves to those behind it
  // (rule 1).
  void SetAside(const std::vector<SequenceView>& waiting) {
    std::vector<SequenceView> prompts;  // of residents, in rank order
    int64_t tokens = budget_;           // what prompts may have
    int64_t pages = free_pages_;
    for (const SequenceView& s : resident_) {
      if (!s.has_work) continue;
      pages -= std::max<int64_t>(0, PagesFor(s.num_tokens) - s.pages);
      if (s.from_host) continue;
      if (Decodes(s)) {
        --tokens;
      } else {
        prompts.push_back(s);
      }
    }
    const int64_t slice = tokens / kWaitingSlices;
    // Of fewer it may lose more by where chunks end than others gain.
    if (prompts.empty() || slice < limits_.chunk_multiple) return;
    // What is bounded leaves others enough.
    if (limits_.max_prompt_tokens < std::numeric_limits<int64_t>::max()) return;
    const SequenceView& highest = prompts.front();
    const int64_t least = std::max(limits_.chunk_multiple,
                                   highest.whole_tokens - highest.num_computed);
    int64_t left = std::min(tokens / 2, tokens - least);
    const auto most = [&](const SequenceView& s) {
      return std::min({Rest(s), limits_.max_chunk_tokens, s.max_step_tokens});
    };
    const auto add = [&](const SequenceView& s, int64_t share) {
      left -= share;
      aside_.push_back({s.id, share});
      aside_tokens_ += share;
    };
    for (size_t i = 1; i < prompts.size(); ++i) {
      const SequenceView& s = prompts[i];
      if (s.priority < highest.priority) break;
      if (Rest(s) <= left && most(s) == Rest(s)) add(s, Rest(s));
    }
    size_t useful = aside_.size();
    int64_t slots = free_slots_;
    for (const SequenceView& s : waiting) {
      if (s.priority < highest.priority) break;
      pages -= PagesFor(s.num_tokens + 1);
      if (--slots < 0 || pages < 0) break;
      if (s.from_host) continue;  // it has no tokens yet
      const bool above = s.priority > highest.priority;
      const int64_t share =
          std::min(most(s), above ? left : (Rest(s) <= left ? left : slice));
      if (share > left || CutChunk(s, share) <= 0) break;
      add(s, share);
      // With what it has now it ends in the next step, at the latest.
      if (above || Rest(s) - share <= tokens / 2) useful = aside_.size();
    }
    // Parts of longer ones only let those behind them in.
    for (; aside_.size() > useful; aside_.pop_back())
      aside_tokens_ -= aside_.back().num_tokens;
  }

  // What is set aside for others than `s`, whose turn it is.
  int64_t AsideForOthers(const SequenceView& s) {
    for (StepPlan::Entry& entry : aside_) {
      if (entry.id != s.id) continue;
      aside_tokens_ -= entry.num_tokens;
      entry.num_tokens = 0;
    }
    return aside_tokens_;
  }

  void ScheduleResident() {
    int64_t decodes = 0;  // not yet scheduled: their tokens are set aside
    for (const SequenceView& s : resident_) decodes += DecodesNow(s);
    for (const SequenceView& s : resident_) {
      if (!s.has_work) continue;
      if (s.from_host) {
        arriving_.push_back(s);
        continue;
      }
      decodes -= DecodesNow(s);
      const int64_t aside = Decodes(s) ? 0 : AsideForOthers(s);
      if (IsPreempted(s.id)) continue;
      Schedule(s, budget_ - decodes - aside - ReservedFrom(s));
    }
  }

  // Nothing else runs: the first one whose memory is on its way does.
  void AwaitCopy() {
    for (const SequenceView& s : arriving_) {
      if (!IsPreempted(s.id) && Schedule(s, budget_)) return;
    }
  }

  // Up to `most` tokens of resident `s`, as many as pages can be had for.
  // Whether it runs.
  bool Schedule(const SequenceView& s, int64_t most) {
    int64_t tokens =
        std::min({s.num_tokens - s.num_computed, ChunkLimit(s), most});
    tokens = CutChunk(s, tokens);
    // Pages: as many tokens as fit, but at least one.
    while (tokens > 0 && PagesFor(s.num_computed + 1) - s.pages > free_pages_) {
      if (victims_.empty() || !YieldsTo(victims_.back(), s)) break;
      PreemptLast();
    }
    if (limits_.page_tokens > 0) {
      const int64_t room =
          (s.pages + free_pages_) * limits_.page_tokens - s.num_computed;
      tokens = CutChunk(s, std::min(tokens, room));
    }
    if (tokens <= 0) return false;
    GrantPages(s.id, std::max<int64_t>(
                         0, PagesFor(s.num_computed + tokens) - s.pages));
    Spend(s, tokens);
    if (IsPaced(s)) lowest_paced_ = std::min(lowest_paced_, s.priority);
    plan_.entries.push_back({s.id, tokens});
    return true;
  }

  // The pages a sequence gets in this step count as its own: whoever takes its
  // memory takes those too.
  void GrantPages(uint64_t id, int64_t pages) {
    // As most often in a step of decoding, which would be quadratic.
    if (pages == 0) return;
    free_pages_ -= pages;
    for (SequenceView& victim : victims_) {
      if (victim.id == id) victim.pages += pages;
    }
  }

  bool Admit(const SequenceView& s) {
    // One whose copy is to come takes no tokens yet.
    const int64_t aside = s.from_host ? 0 : AsideForOthers(s);
    const auto chunk = [&](int64_t budget) {
      return CutChunk(s, std::min({s.num_tokens - s.num_computed, ChunkLimit(s),
                                   budget - aside}));
    };
    // One token more than is known, so that a sequence admitted into the last
    // page is not preempted at its first generated token.
    const int64_t needed = PagesFor(s.num_tokens + 1);
    const int64_t known = PagesFor(s.num_tokens);
    // How many victims, from the back, make it fit? None are taken if all would
    // not do.
    int64_t pages = free_pages_;
    int64_t slots = free_slots_;
    int64_t budget = budget_;
    int64_t taken = 0;
    const auto fits = [&] {
      return slots > 0 &&
             (pages >= needed || (IsAlone(taken) && pages >= known));
    };
    while (!fits()) {
      const int64_t index = static_cast<int64_t>(victims_.size()) - 1 - taken;
      if (index < 0) return false;
      const SequenceView& victim = victims_[index];
      if (victim.has_work && victim.priority >= s.priority) return false;
      pages += victim.pages;
      ++slots;
      budget += ScheduledTokens(victim.id);
      ++taken;
    }
    if (chunk(budget) <= 0) return false;
    for (; taken > 0; --taken) {
      Unschedule(victims_.back());
      PreemptLast();
    }
    free_pages_ -= known;
    --free_slots_;
    plan_.admit.push_back(s.id);
    if (s.from_host) {
      arriving_.push_back(s);
      arriving_.back().pages = known;
      return true;
    }
    const int64_t tokens = chunk(budget_);
    if (reserve_for_ && s.id == reserve_for_->id) reserved_ = 0;
    Spend(s, tokens);
    plan_.entries.push_back({s.id, tokens});
    return true;
  }

  // Whether nothing else would be resident after taking `taken` victims.
  bool IsAlone(int64_t taken) const {
    return plan_.admit.empty() &&
           taken == static_cast<int64_t>(victims_.size()) &&
           std::none_of(resident_.begin(), resident_.end(),
                        [](const SequenceView& s) { return s.ending; });
  }

  // What a sequence computes in this step as far as it is planned.
  int64_t ScheduledTokens(uint64_t id) const {
    for (const StepPlan::Entry& entry : plan_.entries) {
      if (entry.id == id) return entry.num_tokens;
    }
    return 0;
  }

  // Drops a lower-priority sequence from this step, since its memory is taken.
  void Unschedule(const SequenceView& s) {
    for (size_t i = 0; i < plan_.entries.size(); ++i) {
      if (plan_.entries[i].id != s.id) continue;
      Spend(s, -plan_.entries[i].num_tokens);
      plan_.entries.erase(plan_.entries.begin() + static_cast<int64_t>(i));
      return;
    }
  }

  // For a long prompt that waits one in so many parts of what prompts may have
  // is set aside: enough to be admitted, so that short ones behind it are.
  static constexpr int64_t kWaitingSlices = 8;

  const SchedulerLimits limits_;
  int64_t free_pages_;
  int64_t free_slots_;
  int64_t budget_;
  int64_t prompt_budget_;
  const std::vector<SequenceView> resident_;  // in rank order
  std::vector<SequenceView>
      victims_;  // resident and not preempted; next victim last
  std::vector<SequenceView> arriving_;  // from_host, with work
  // What the highest of the prompts leaves to others, and the sum of it.
  std::vector<StepPlan::Entry> aside_;
  int64_t aside_tokens_ = 0;
  const std::optional<SequenceView> reserve_for_;
  int64_t reserved_ = 0;
  std::optional<SequenceView> first_left_;  // of those that wait
  // Priority, of the paced residents that run.
  int32_t lowest_paced_ = std::numeric_limits<int32_t>::max();
  // Of those preempted that have work.
  std::optional<SequenceView> highest_preempted_;
  StepPlan plan_;
};

}  // namespace

StepPlan PlanStep(const SchedulerLimits& limits, int64_t free_pages,
                  int64_t free_slots, absl::Span<const SequenceView> resident,
                  absl::Span<const SequenceView> waiting) {
  Planner planner(limits, free_pages, free_slots, resident);
  StepPlan plan = planner.Plan(waiting);
  if (const auto first = planner.PassedOver()) {
    // Whether it can be admitted, a plan tells for sure. If not, nothing is
    // kept from the residents.
    StepPlan reserved =
        Planner(limits, free_pages, free_slots, resident, first).Plan(waiting);
    if (std::count(reserved.admit.begin(), reserved.admit.end(), first->id))
      return reserved;
  }
  if (!plan.entries.empty()) return plan;
  // Those that decode wait for pages, which the prompts have.
  SchedulerLimits unbounded = limits;
  unbounded.max_prompt_tokens = std::numeric_limits<int64_t>::max();
  return Planner(unbounded, free_pages, free_slots, resident).Plan(waiting);
}

}  // namespace recurve

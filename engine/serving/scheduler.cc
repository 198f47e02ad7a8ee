#include "engine/serving/scheduler.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/serving/page_holders.h"
#include "engine/serving/prompt_shares.h"

namespace recurve {

bool RanksAbove(const SequenceView& a, const SequenceView& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.turn != b.turn) return a.turn < b.turn;
  return a.arrival < b.arrival;
}

namespace {

std::vector<SequenceView> Ranked(absl::Span<const SequenceView> sequences) {
  std::vector<SequenceView> ranked(sequences.begin(), sequences.end());
  std::sort(ranked.begin(), ranked.end(), RanksAbove);
  return ranked;
}

bool Decodes(const SequenceView& s) { return s.rest() == 1; }

bool DecodesNow(const SequenceView& s) {
  return s.has_work && !s.from_host && Decodes(s);
}

bool IsPaced(const SequenceView& s) { return s.paced && !Decodes(s); }

// Tokens of a step left by decoding.
int64_t PromptTokens(const SchedulerLimits& limits,
                     absl::Span<const SequenceView> resident) {
  return limits.max_batched_tokens -
         std::count_if(resident.begin(), resident.end(), DecodesNow);
}

// The order in which prompts are given tokens: within a priority, residents
// come first, so that prompts holding memory complete.
std::vector<SequenceView> ResidentsFirst(
    const std::vector<SequenceView>& resident,
    const std::vector<SequenceView>& waiting) {
  std::vector<SequenceView> all = resident;
  all.insert(all.end(), waiting.begin(), waiting.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const SequenceView& a, const SequenceView& b) {
                     return a.priority > b.priority;
                   });
  return all;
}

class Planner {
 public:
  Planner(const SchedulerLimits& limits, int64_t free_pages, int64_t free_slots,
          absl::Span<const SequenceView> resident,
          absl::Span<const SequenceView> waiting)
      : limits_(limits),
        free_pages_(free_pages),
        free_slots_(free_slots),
        budget_(limits.max_batched_tokens),
        prompt_budget_(limits.max_prompt_tokens),
        resident_(Ranked(resident)),
        waiting_(Ranked(waiting)),
        holders_(resident_),
        step_tokens_(PromptTokens(limits, resident_)),
        order_(ResidentsFirst(resident_, waiting_)),
        shares_(limits, step_tokens_, Prompts()),
        half_(shares_.half()) {
    // Victims are taken from the back: idle ones first, then the lowest in
    // rank.
    for (const SequenceView& s : resident_) {
      if (!s.ending) victims_.push_back(s);
    }
    std::stable_sort(victims_.begin(), victims_.end(),
                     [](const SequenceView& a, const SequenceView& b) {
                       return a.has_work > b.has_work;
                     });
  }

  StepPlan Plan() {
    ScheduleResident();
    AdmitWaiting();
    ShareRest();
    if (plan_.entries.empty()) AwaitCopy();
    for (std::vector<uint64_t>* ids : {&plan_.passed, &plan_.passed_over}) {
      ids->erase(std::remove_if(ids->begin(), ids->end(),
                                [&](uint64_t id) { return IsAdmitted(id); }),
                 ids->end());
    }
    return std::move(plan_);
  }

 private:
  enum class Admission { kAdmitted, kNoTokens, kNoMemory };

  int64_t PagesFor(int64_t tokens) const {
    if (limits_.page_tokens == 0) return 0;
    return (tokens + limits_.page_tokens - 1) / limits_.page_tokens;
  }

  // First each prompt gets its share; then short prompts get the rest of their
  // half, or more if no long one has their priority; then all get the
  // remainder.
  enum class Phase { kShares, kHalf, kRest };

  // Tokens of `s` that the limits of the step and of prompts allow.
  int64_t MostOf(const SequenceView& s, int64_t budget) const {
    const int64_t most = std::min(
        {s.rest(), limits_.max_chunk_tokens, s.max_step_tokens, budget});
    if (Decodes(s) && IsResident(s)) return most;
    return std::min({most, PhaseLimit(s), PacedLimit(s)});
  }

  bool HasHalf(const SequenceView& s) const {
    return shares_.HasHalf(s) && !(Decodes(s) && IsResident(s));
  }

  // For a prompt, the tokens that the phase gives it.
  int64_t PhaseLimit(const SequenceView& s) const {
    switch (phase_) {
      case Phase::kShares:
        return shares_.Of(s);
      case Phase::kHalf:
        if (HasHalf(s)) return half_;
        if (!shares_.PrecedesHalf(s)) return 0;
        break;
      case Phase::kRest:
        break;
    }
    return std::numeric_limits<int64_t>::max();
  }

  int64_t PacedLimit(const SequenceView& s) const {
    if (!IsPaced(s)) return std::numeric_limits<int64_t>::max();
    if (phase_ == Phase::kShares) return shares_.PacedOf(s);
    // A whole prompt cannot be split. The first of a step may exceed the limit.
    return prompt_budget_ > 0 && prompt_budget_ == limits_.max_prompt_tokens
               ? std::max(prompt_budget_, s.whole_tokens - s.num_computed)
               : prompt_budget_;
  }

  // Whether only the limit on paced prompts leaves `s` nothing.
  bool HeldByPace(const SequenceView& s) const {
    const int64_t most = std::min(
        {s.rest(), budget_, limits_.max_chunk_tokens, s.max_step_tokens});
    return IsPaced(s) && CutChunk(limits_, s, most) > 0 &&
           CutChunk(limits_, s, std::min(most, PacedLimit(s))) <= 0;
  }

  // `tokens` of `s` are computed in this step; or, if negative, withdrawn.
  void Spend(const SequenceView& s, int64_t tokens) {
    budget_ -= tokens;
    if (IsPaced(s)) prompt_budget_ -= tokens;
    if (HasHalf(s)) half_ -= tokens;
  }

  static bool Has(const std::vector<uint64_t>& ids, uint64_t id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  }
  bool IsPreempted(uint64_t id) const { return Has(plan_.preempt, id); }
  bool IsAdmitted(uint64_t id) const { return Has(plan_.admit, id); }

  // Whether `s` ranks below a sequence that lost its memory in this step and
  // will wait for it from the next step on.
  bool WouldOvertake(const SequenceView& s) const {
    return highest_preempted_ && RanksAbove(*highest_preempted_, s);
  }

  // REQUIRES: `index` is a victim's.
  void Preempt(size_t index) {
    const SequenceView victim = victims_[index];
    if (victim.has_work &&
        (!highest_preempted_ || RanksAbove(victim, *highest_preempted_))) {
      highest_preempted_ = victim;
    }
    free_pages_ += holders_.Drop(victim);
    ++free_slots_;
    plan_.preempt.push_back(victim.id);
    victims_.erase(victims_.begin() + static_cast<int64_t>(index));
  }

  // Whether `victim` may be preempted so that resident `s` gets a page.
  bool YieldsPage(const SequenceView& victim, const SequenceView& s) const {
    if (victim.id == s.id) return false;
    return !victim.has_work ||
           (RanksAbove(s, victim) && !RanksAboveAdmitted(victim));
  }

  // Then a sequence admitted in this step would overtake it.
  bool RanksAboveAdmitted(const SequenceView& victim) const {
    return lowest_admitted_ && RanksAbove(victim, *lowest_admitted_);
  }

  // Whether `victim` may be preempted so that the waiting `s` is admitted.
  bool YieldsToWaiting(const SequenceView& victim,
                       const SequenceView& s) const {
    if (!victim.has_work) return true;
    if (RanksAboveAdmitted(victim)) return false;
    if (victim.priority != s.priority) return victim.priority < s.priority;
    return victim.flow != s.flow && victim.turn > s.turn;
  }

  // False: no victim yields to `s`, nor to a sequence that ranks below it.
  // Victims are sorted: the last is idle if any is, and ranks lowest if none
  // is.
  bool AnyYields(const SequenceView& s) const {
    if (victims_.empty()) return false;
    const SequenceView& last = victims_.back();
    return !last.has_work || last.priority < s.priority ||
           (last.priority == s.priority && last.turn > s.turn);
  }

  // --- Residents ---

  void ScheduleResident() {
    // Not yet scheduled: their tokens are reserved.
    int64_t decodes =
        std::count_if(resident_.begin(), resident_.end(), DecodesNow);
    for (const SequenceView& s : resident_) {
      if (!s.has_work) continue;
      if (s.from_host) {
        arriving_.push_back(s);
        continue;
      }
      decodes -= DecodesNow(s);
      if (IsPreempted(s.id)) continue;
      Schedule(s, budget_ - decodes);
    }
  }

  // Schedules up to `most` tokens of resident `s`, as many as pages can be
  // found for. Returns whether it runs.
  bool Schedule(const SequenceView& s, int64_t most) {
    int64_t tokens = CutChunk(limits_, s, MostOf(s, most));
    // As many tokens as pages fit, but at least one.
    if (tokens > 0) FreePages(s, PagesFor(s.num_computed + 1) - s.pages);
    tokens = Fit(s, s.pages, tokens);
    if (tokens <= 0) return false;
    GrantPages(s.id, std::max<int64_t>(
                         0, PagesFor(s.num_computed + tokens) - s.pages));
    Spend(s, tokens);
    plan_.entries.push_back({s.id, tokens});
    return true;
  }

  // Preempts victims that yield to `s`, from the back, until `pages` pages are
  // free; none if all are not enough.
  void FreePages(const SequenceView& s, int64_t pages) {
    if (counts_on_found_) return;
    int64_t free = free_pages_;
    std::vector<size_t> taken;
    for (size_t i = victims_.size();
         free < pages && i > 0 && YieldsPage(victims_[i - 1], s); --i) {
      free += holders_.Drop(victims_[i - 1]);
      taken.push_back(i - 1);
    }
    for (const size_t index : taken) holders_.Undrop(victims_[index]);
    if (free < pages) return;
    for (const size_t index : taken) {  // from the back
      Unschedule(victims_[index]);
      Preempt(index);
    }
  }

  // How many of `tokens` tokens of `s`, which has `pages`, there are pages for.
  int64_t Fit(const SequenceView& s, int64_t pages, int64_t tokens) const {
    if (limits_.page_tokens == 0) return tokens;
    const int64_t room =
        (pages + free_pages_) * limits_.page_tokens - s.num_computed;
    return CutChunk(limits_, s, std::min(tokens, room));
  }

  // The pages granted to a sequence in this step count as its own: taking its
  // memory takes these too.
  void GrantPages(uint64_t id, int64_t pages) {
    // The usual case in a decode step; the search would make it quadratic.
    if (pages == 0) return;
    free_pages_ -= pages;
    for (SequenceView& victim : victims_) {
      if (victim.id == id) victim.pages += pages;
    }
  }

  // --- Waiting sequences ---

  // One pass over the waiting sequences, in rank order.
  struct Pass {
    // Later ones continue only if they fit a step, or, while there are shares
    // and nothing lacked memory, if they are long ones of another flow.
    bool stopped = false;
    bool lacked_memory = false;
    std::vector<uint32_t> flows;  // of long prompts that lacked tokens
    std::vector<uint64_t> lack_pages;
    bool over = false;  // no later one can be admitted
  };

  void AdmitWaiting() {
    Pass pass;
    for (const SequenceView& s : waiting_) TryAdmit(s, &pass);
  }

  void TryAdmit(const SequenceView& s, Pass* pass) {
    if (pass->over || IsAdmitted(s.id)) return;
    if (WouldOvertake(s) || (free_slots_ < 1 && !AnyYields(s))) {
      pass->over = true;
      return;
    }
    const bool fits = shares_.Fits(s);
    const bool lacks_pages =
        free_pages_ + FoundPages(s) < PagesFor(s.num_tokens + 1);
    if (pass->stopped && !fits &&
        (pass->lacked_memory || phase_ != Phase::kShares ||
         std::find(pass->flows.begin(), pass->flows.end(), s.flow) !=
             pass->flows.end())) {
      return;
    }
    const Admission admission = Admit(s);
    if (admission == Admission::kAdmitted) {
      for (const uint64_t id : pass->lack_pages) {
        if (!Has(plan_.passed, id)) plan_.passed.push_back(id);
      }
      return;
    }
    if (admission == Admission::kNoTokens && phase_ == Phase::kRest &&
        !Has(plan_.passed_over, s.id)) {
      plan_.passed_over.push_back(s.id);
    }
    if (HeldByPace(s)) return;
    pass->stopped = true;
    if (!fits) pass->flows.push_back(s.flow);
    if (admission == Admission::kNoTokens) return;
    pass->lacked_memory = true;
    if (!lacks_pages) return;  // but lacks a slot
    if (s.passes >= kMaxPasses) {
      pass->over = true;
    } else {
      pass->lack_pages.push_back(s.id);
    }
  }

  // Pages that `s` need not take, if no one loses memory in this plan.
  int64_t FoundPages(const SequenceView& s) const {
    return plan_.preempt.empty() ? s.found_pages : 0;
  }

  Admission Admit(const SequenceView& s) {
    // A sequence whose copy is still to come takes no tokens yet.
    const auto chunk = [&](int64_t budget) {
      return CutChunk(limits_, s, MostOf(s, budget));
    };
    // One token more than are known, so that a sequence admitted into the last
    // page is not preempted at its first generated token.
    const int64_t needed = PagesFor(s.num_tokens + 1);
    const int64_t known = PagesFor(s.num_tokens);
    int64_t found = FoundPages(s);
    // How many victims, from the back, make it fit? None are taken if all are
    // not enough.
    int64_t pages = free_pages_;
    int64_t slots = free_slots_;
    int64_t budget = budget_;
    std::vector<size_t> taken;
    const auto fits = [&] {
      return slots > 0 && (pages + found >= needed ||
                           (IsAlone(taken.size()) && pages + found >= known));
    };
    if (!fits()) {
      found = 0;  // what it finds may be a victim's
      if (counts_on_found_ || !AnyYields(s)) return Admission::kNoMemory;
    }
    for (size_t i = victims_.size(); i > 0 && !fits(); --i) {
      const SequenceView& victim = victims_[i - 1];
      if (!YieldsToWaiting(victim, s)) continue;
      pages += holders_.Drop(victim);
      ++slots;
      budget += ScheduledTokens(victim.id);
      taken.push_back(i - 1);
    }
    for (const size_t index : taken) holders_.Undrop(victims_[index]);
    if (!fits()) return Admission::kNoMemory;
    if (!s.from_host && chunk(budget) <= 0) return Admission::kNoTokens;
    for (const size_t index : taken) {  // from the back
      Unschedule(victims_[index]);
      Preempt(index);
    }
    free_pages_ -= known - found;
    counts_on_found_ |= found > 0;
    --free_slots_;
    plan_.admit.push_back(s.id);
    if (!lowest_admitted_ || RanksAbove(*lowest_admitted_, s)) {
      lowest_admitted_ = s;
    }
    if (s.from_host) {
      arriving_.push_back(s);
      arriving_.back().pages = known;
      return Admission::kAdmitted;
    }
    const int64_t tokens = chunk(budget_);
    Spend(s, tokens);
    plan_.entries.push_back({s.id, tokens});
    return Admission::kAdmitted;
  }

  // Whether nothing else would be resident after taking `taken` victims.
  bool IsAlone(size_t taken) const {
    return plan_.admit.empty() && taken == victims_.size() &&
           std::none_of(resident_.begin(), resident_.end(),
                        [](const SequenceView& s) { return s.ending; });
  }

  // The tokens planned for a sequence in this step so far.
  int64_t ScheduledTokens(uint64_t id) const {
    for (const StepPlan::Entry& entry : plan_.entries) {
      if (entry.id == id) return entry.num_tokens;
    }
    return 0;
  }

  // Drops a lower-ranked sequence from this step, because its memory is taken.
  void Unschedule(const SequenceView& s) {
    for (size_t i = 0; i < plan_.entries.size(); ++i) {
      if (plan_.entries[i].id != s.id) continue;
      Spend(s, -plan_.entries[i].num_tokens);
      plan_.entries.erase(plan_.entries.begin() + static_cast<int64_t>(i));
      return;
    }
  }

  // --- The remainder ---

  // Distributes tokens that the owners of shares could not use, and those of
  // victims: first to short prompts, up to their half, then to any sequence.
  void ShareRest() {
    // Decoding sequences that lack a page: victims may yet leave them some.
    const int64_t kept =
        std::count_if(resident_.begin(), resident_.end(), [&](const auto& s) {
          return DecodesNow(s) && !IsPreempted(s.id) &&
                 ScheduledTokens(s.id) == 0;
        });
    budget_ -= kept;
    phase_ = Phase::kHalf;
    GiveRest();
    phase_ = Phase::kRest;
    GiveRest();
    if (kept == 0) return;
    budget_ += kept;
    for (const SequenceView& s : resident_) {
      if (DecodesNow(s) && !IsPreempted(s.id)) TopUp(s, s.pages);
    }
    GiveRest();
  }

  void GiveRest() {
    Pass pass;
    for (const SequenceView& s : order_) {
      const bool resident = IsResident(s);
      if (!resident) TryAdmit(s, &pass);
      const bool holds = resident ? !IsPreempted(s.id) : IsAdmitted(s.id);
      if (!holds || !s.has_work || s.from_host || budget_ < 1) continue;
      if (ScheduledTokens(s.id) == 0) {
        Schedule(s, budget_);
      } else {
        TopUp(s, resident ? s.pages : PagesFor(s.num_tokens));
      }
    }
  }

  // Work other than decoding.
  std::vector<SequenceView> Prompts() const {
    std::vector<SequenceView> prompts;
    for (const SequenceView& s : order_) {
      if (!s.has_work || s.from_host || (IsResident(s) && Decodes(s))) continue;
      prompts.push_back(s);
    }
    return prompts;
  }

  bool IsResident(const SequenceView& s) const {
    return std::any_of(resident_.begin(), resident_.end(),
                       [&](const SequenceView& r) { return r.id == s.id; });
  }

  // Gives `s`, which has `pages`, as many more tokens of the step as it can
  // use.
  void TopUp(const SequenceView& s, int64_t pages) {
    const auto entry =
        std::find_if(plan_.entries.begin(), plan_.entries.end(),
                     [&](const auto& e) { return e.id == s.id; });
    const bool runs = entry != plan_.entries.end();
    const int64_t has = runs ? entry->num_tokens : 0;
    if (has == s.rest()) return;
    int64_t more = budget_;
    if (IsPaced(s)) more = std::min(more, prompt_budget_);
    if (!Decodes(s)) more = std::min(more, PhaseLimit(s));
    pages = std::max(pages, PagesFor(s.num_computed + has));
    const int64_t tokens =
        Fit(s, pages,
            CutChunk(limits_, s,
                     std::min({s.rest(), limits_.max_chunk_tokens,
                               s.max_step_tokens, has + more})));
    if (tokens <= has) return;
    GrantPages(s.id,
               std::max<int64_t>(0, PagesFor(s.num_computed + tokens) - pages));
    Spend(s, tokens - has);
    if (runs) {
      entry->num_tokens = tokens;
    } else {
      plan_.entries.push_back({s.id, tokens});
    }
  }

  // Nothing else runs: run the first one whose memory is being copied back.
  void AwaitCopy() {
    for (const SequenceView& s : arriving_) {
      if (!IsPreempted(s.id) && Schedule(s, budget_)) return;
    }
  }

  const SchedulerLimits limits_;
  int64_t free_pages_;
  // A sequence is admitted that takes less because residents hold pages of it.
  bool counts_on_found_ = false;
  int64_t free_slots_;
  int64_t budget_;         // tokens left in the step
  int64_t prompt_budget_;  // of max_prompt_tokens
  // In rank order.
  const std::vector<SequenceView> resident_;
  const std::vector<SequenceView> waiting_;
  PageHolders holders_;
  const int64_t step_tokens_;              // tokens of the step left by
                                           // decoding
  const std::vector<SequenceView> order_;  // both, see ResidentsFirst
  PromptShares shares_;
  int64_t half_;  // what is left of the half for short prompts
  Phase phase_ = Phase::kShares;
  std::vector<SequenceView>
      victims_;  // resident and not preempted; the next victim is last
  std::vector<SequenceView> arriving_;           // from_host, with work
  std::optional<SequenceView> lowest_admitted_;  // lowest in rank
  // Among the preempted ones that have work.
  std::optional<SequenceView> highest_preempted_;
  StepPlan plan_;
};

}  // namespace

void AssignTurns(absl::Span<SequenceView> sequences) {
  std::vector<SequenceView*> order;
  for (SequenceView& s : sequences) order.push_back(&s);
  std::sort(order.begin(), order.end(),
            [](const SequenceView* a, const SequenceView* b) {
              return std::tuple(a->flow, -int64_t{a->priority}, a->arrival) <
                     std::tuple(b->flow, -int64_t{b->priority}, b->arrival);
            });
  int64_t before = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && order[i]->flow != order[i - 1]->flow) before = 0;
    order[i]->turn = static_cast<double>(before) / order[i]->weight;
    before += order[i]->has_work;
  }
}

StepPlan PlanStep(const SchedulerLimits& limits, int64_t free_pages,
                  int64_t free_slots, absl::Span<const SequenceView> resident,
                  absl::Span<const SequenceView> waiting) {
  StepPlan plan =
      Planner(limits, free_pages, free_slots, resident, waiting).Plan();
  if (!plan.entries.empty()) return plan;
  // Decoding sequences wait for pages, which prompts hold.
  SchedulerLimits unbounded = limits;
  unbounded.max_prompt_tokens = std::numeric_limits<int64_t>::max();
  return Planner(unbounded, free_pages, free_slots, resident, waiting).Plan();
}

}  // namespace recurve
